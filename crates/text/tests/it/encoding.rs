//! Texts as files of tokens.

use std::fs;
use std::path::Path;

use phalanx_data::Split;
use phalanx_text::{
    Corpus, CorpusConfig, Documents, DocumentsConfig, EncodeConfig, Encoded, ShardFormat, Tokenizer, encode,
};

fn encoded(path: &Path, out: &Path, format: ShardFormat, test_percent: u64) -> Encoded {
    let documents = Documents::open(&[path.to_owned()], DocumentsConfig::default()).expect("there");
    let config = EncodeConfig { format, test_percent };
    encode(&documents, &Tokenizer::bytes(), out, config, &mut |_| ()).expect("small")
}

fn read(folder: &Path, split: Split) -> String {
    let corpus = Corpus::open(folder, &CorpusConfig::default()).expect("just written");
    let tokens: Vec<u32> = corpus.parts(split).iter().flat_map(|part| part.read().expect("there")).collect();
    corpus.tokenizer().expect("next to them").decode(&tokens).expect("tokens")
}

#[test]
fn a_text_is_cut_at_a_line_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, out) = (folder.path().join("a.txt"), folder.path().join("out"));
    // Longer than a passage.
    let lines: String = (0..120_000).map(|line| format!("line {line} – é\n")).collect();
    fs::write(&text, &lines).expect("written");
    let encoded = encoded(&text, &out, ShardFormat::LlmC, 10);
    let (train, test) = (read(&out, Split::Train), read(&out, Split::Test));
    assert_eq!(format!("{train}{test}"), lines);
    assert!(train.ends_with('\n') && test.starts_with("line "));
    let share = test.len() as f64 / lines.len() as f64;
    assert!((share - 0.1).abs() < 1e-3, "{share}");
    assert_eq!((encoded.train.documents, encoded.test.documents), (1, 1));
    assert_eq!(encoded.train.bytes + encoded.test.bytes, lines.len() as u64);
    assert!(!out.join("train.bin.partial").exists());
}

#[test]
fn documents_go_to_splits_as_in_a_corpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines: String = (0..20).map(|number| format!("{{\"text\": \"<{number}>\"}}\n")).collect();
    let (text, out) = (folder.path().join("all.jsonl"), folder.path().join("out"));
    fs::write(&text, lines).expect("written");
    for format in [ShardFormat::NanoGpt, ShardFormat::LlmC, ShardFormat::Megatron] {
        let encoded = encoded(&text, &out, format, 10);
        assert_eq!((encoded.train.documents, encoded.test.documents), (18, 2));
        assert_eq!(read(&out, Split::Test), "<9><19>");
        fs::remove_dir_all(&out).expect("there");
    }
    encoded(&text, &out, ShardFormat::LlmC, 0);
    assert!(!out.join("val.bin").exists(), "nothing is for testing");
}
