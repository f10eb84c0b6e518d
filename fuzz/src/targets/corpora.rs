//! Corpora of language models: texts, files of tokens with their indices, models of SentencePiece, texts with classes, and pairs of
//! texts.

use phalanx_data::{Dataset, Split};
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_text::{
    Corpus, CorpusConfig, DocumentBorders, LabelKeys, LabelledDocuments, Languages, ParallelTexts,
    ShardFormat, ShardWriter, TokenWindows, Tokenizer, WindowsConfig,
};

use super::Target;

/// Returns the bytes of a file of tokens, and of its index if it has one.
fn shard(format: ShardFormat) -> [Vec<u8>; 2] {
    let place = folder();
    let path = place.path().join("train.bin");
    let written = ShardWriter::create(&path, format, 300).and_then(|mut writer| {
        for document in [&[1, 2, 3][..], &[4, 5]] {
            writer.push(document)?;
            writer.end_document();
        }
        writer.finish()
    });
    written.expect("a small file");
    ["bin", "idx"].map(|ending| std::fs::read(path.with_extension(ending)).unwrap_or_default())
}

/// A model of SentencePiece: `<unk>`, `▁`, `a` and `ab` with their scores.
const MODEL: &[u8] = b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02\x0a\x0a\x0a\x03\xe2\x96\x81\x15\0\0\x40\xc0\
    \x0a\x08\x0a\x01a\x15\0\0\x40\xc0\x0a\x09\x0a\x02ab\x15\0\0\0\xc0\x12\x02\x18\x01\x1a\x02\x18\x01";

/// A compiled catalogue of gettext with its header and a message with a context and a plural.
fn catalogue() -> Vec<u8> {
    let texts: [&[u8]; 4] = [
        b"",
        b"menu\x04%d file\0%d files",
        b"Content-Type: text/plain; charset=UTF-8\n",
        b"%d Datei\0%d Dateien",
    ];
    let number = |value: usize| (value as u32).to_le_bytes();
    let mut bytes: Vec<u8> = [0x9504_12de, 0, 2, 28, 44, 0, 60].into_iter().flat_map(number).collect();
    let mut at = 60;
    for text in texts {
        bytes.extend([number(text.len()), number(at)].concat());
        at += text.len() + 1;
    }
    texts.iter().for_each(|text| bytes.extend([*text, &[0]].concat()));
    bytes
}

fn corpora() -> Vec<Vec<u8>> {
    let ([plain, _], [indexed, index]) = (shard(ShardFormat::LlmC), shard(ShardFormat::Megatron));
    let lines = "{\"text\": \"one <0x41>\"}\n{\"text\": \"two\"}\n".repeat(6);
    vec![files::join([
        ("llm.c/train.bin", plain.as_slice()),
        ("megatron/train.bin", &indexed),
        ("megatron/train.idx", &index),
        ("lines/all.jsonl", lines.as_bytes()),
        ("text/a.txt", b"one line\nand another\n\nthe end\n"),
        ("text/tokenizer.model", MODEL),
        ("classes/all.tsv", b"text\tlabel\none\tgood\ntwo\tbad\nthree\tgood\n"),
        ("classes/more.jsonl", b"{\"text\": \"four\", \"label\": 3}\n"),
        (
            "named/rows.parquet",
            include_bytes!("../../../crates/text/tests/fixtures/labelled_train.parquet").as_slice(),
        ),
        ("pairs/a.mo", &catalogue()),
        ("pairs/b.tsv", b"de\ten\neins\tone\n"),
        ("pairs/c.en", b"one\n"),
        ("pairs/c.de", b"eins\n"),
    ])]
}

/// Opens all of it as far as it goes.
fn read_corpora(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let tokenizer = Tokenizer::open(place.path().join("text/tokenizer.model"));
    if let Ok(tokenizer) = tokenizer {
        let tokens = tokenizer.encode("ab a unknown").unwrap_or_default();
        let _ = tokenizer.decode(&tokens);
        assert_eq!(tokenizer.byte_lengths().len(), tokenizer.vocab());
    }
    let keys = LabelKeys { text: "text".to_owned(), second: None, class: "label".to_owned() };
    for folder in ["classes", "named"] {
        let Ok(labelled) = LabelledDocuments::open(&place.path().join(folder), &keys, 50) else { continue };
        let texts = [Split::Train, Split::Test].map(|split| labelled.texts(split));
        assert!(texts.into_iter().flatten().all(|text| (text.class as usize) < labelled.classes().len()));
    }
    let languages = Languages { source: "en".to_owned(), target: "de".to_owned() };
    let _ = ParallelTexts::open(&place.path().join("pairs"), &languages);
    for name in ["llm.c", "megatron", "lines", "text/a.txt"] {
        let Ok(corpus) = Corpus::open(place.path().join(name), &CorpusConfig::default()) else { continue };
        let parts = corpus.parts(Split::Train).to_vec();
        let config =
            WindowsConfig { context: 3, stride: 2, documents: DocumentBorders::Apart { end: Some(3) } };
        let Ok(windows) = TokenWindows::new(name, parts, config) else { continue };
        for sample in 0..windows.len().min(3) {
            let _ = windows.get(sample, 0);
        }
    }
}

pub(super) const CORPORA: Target = Target {
    name: "corpora",
    about: "texts, files of tokens and tokenizers of language models",
    seeds: corpora,
    words: &["charset=", "translation", "MMIDIDX\0\0", "\x01\0\0\0\0\0\0\0", "\"text\"", "▁", "<unk>"],
    change: files::change,
    read: read_corpora,
    cases: 300,
    memory: 64 << 20,
};
