//! Paths to texts and tokens.

use std::fs;

use phalanx_data::Split;
use phalanx_text::{
    Corpus, CorpusConfig, DocumentsConfig, ShardFormat, ShardWriter, Tokenizer, TokenizerChoice,
};

fn with(tokenizer: &str) -> CorpusConfig {
    let Ok(tokenizer) = tokenizer.parse::<TokenizerChoice>();
    CorpusConfig { tokenizer, ..CorpusConfig::default() }
}

fn tokens(corpus: &Corpus, split: Split) -> Vec<u32> {
    corpus.parts(split).iter().flat_map(|part| part.read().expect("there")).collect()
}

fn texts(corpus: &Corpus, split: Split) -> String {
    corpus.tokenizer().expect("of a text").decode(&tokens(corpus, split)).expect("tokens")
}

#[test]
fn the_end_of_a_text_is_for_testing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("play.txt");
    fs::write(&file, "\u{feff}to be or not to bé!").expect("written");
    let corpus = Corpus::open(&file, &with("")).expect("a text");
    assert_eq!(
        (texts(&corpus, Split::Train), texts(&corpus, Split::Test)),
        ("to be or not to b".into(), "é!".into())
    );
    let bytes = Corpus::open(&file, &with("bytes")).expect("a text");
    assert_eq!(bytes.tokenizer().expect("bytes").vocab(), 256);
    // Bytes may be no text.
    fs::write(&file, b"\xff\xfe\xfd\xfc").expect("written");
    assert_eq!(
        tokens(&Corpus::open(&file, &with("bytes")).expect("any bytes"), Split::Train),
        [0xff, 0xfe, 0xfd]
    );
    let error = Corpus::open(&file, &with("characters")).expect_err("no text").to_string();
    assert!(error.contains("UTF-16"), "{error}");
    fs::write(&file, b"ab\xffcd").expect("written");
    let error = Corpus::open(&file, &with("")).expect_err("no text").to_string();
    assert!(error.contains("byte 2"), "{error}");
    let error = Corpus::open(folder.path().join("none.txt"), &with("")).expect_err("missing").to_string();
    assert!(error.contains("none.txt"), "{error}");
}

#[test]
fn of_many_documents_every_tenth_is_for_testing() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines: Vec<String> =
        (0..20).map(|number| format!("{{\"text\": \"<{number}>\", \"id\": {number}}}")).collect();
    let file = folder.path().join("all.jsonl");
    fs::write(&file, lines.join("\n") + "\n\n").expect("written");
    let corpus = Corpus::open(&file, &with("bytes")).expect("lines");
    assert_eq!(texts(&corpus, Split::Test), "<9><19>");
    let train = &corpus.parts(Split::Train)[0];
    assert_eq!(train.stream.documents().expect("documents").len(), 18);
    assert_eq!(train.stream.documents().expect("documents")[..2], [0, 3]);
    let other = CorpusConfig {
        documents: DocumentsConfig { field: "body".into(), ..DocumentsConfig::default() },
        ..with("")
    };
    let error = Corpus::open(&file, &other).expect_err("no body").to_string();
    assert!(error.contains("line 1") && error.contains("\"id\""), "{error}");
    fs::write(&file, "{\"text\": \"a\"}\n{\"text\": \n").expect("written");
    assert!(Corpus::open(&file, &with("")).expect_err("cut").to_string().contains("line 2"));
}

#[test]
fn names_say_the_splits_of_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("more")).expect("made");
    for (name, text) in
        [("train-0.txt", "aa"), ("more/train.txt", "bb"), ("val.txt", "ab"), (".hidden.txt", "cc")]
    {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let corpus = Corpus::open(folder.path(), &with("")).expect("texts");
    assert_eq!((texts(&corpus, Split::Train), texts(&corpus, Split::Test)), ("bbaa".into(), "ab".into()));
    let none = CorpusConfig {
        documents: DocumentsConfig { endings: vec!["rs".into()], ..DocumentsConfig::default() },
        ..with("")
    };
    assert!(Corpus::open(folder.path(), &none).expect_err("no Rust").to_string().contains(".rs"));
}

#[test]
fn files_of_tokens_need_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, tokens: &[u32]| {
        let mut writer =
            ShardWriter::create(&folder.path().join(name), ShardFormat::LlmC, 256).expect("room");
        writer.push(tokens).expect("written");
        writer.finish().expect("written");
    };
    write("fineweb_train_000001.bin", &[1, 2, 3]);
    write("fineweb_train_000002.bin", &[4, 5, 6]);
    write("fineweb_val_000000.bin", &[7, 8]);
    let corpus = Corpus::open(folder.path(), &with("")).expect("tokens");
    assert!(corpus.tokenizer().is_none());
    assert_eq!(
        (tokens(&corpus, Split::Train), tokens(&corpus, Split::Test)),
        (vec![1, 2, 3, 4, 5, 6], vec![7, 8])
    );
    let three = Tokenizer::characters("abc").expect("a text");
    fs::write(folder.path().join("tokenizer.json"), three.json()).expect("written");
    let error = Corpus::open(folder.path(), &with("")).expect_err("three tokens").to_string();
    assert!(error.contains("token 2 is 3, beyond the vocabulary of 3"), "{error}");
    assert!(Corpus::open(folder.path(), &with("characters")).is_err());
    let alone =
        Corpus::open(folder.path().join("fineweb_train_000001.bin"), &with("bytes")).expect("one file");
    assert_eq!(tokens(&alone, Split::Train), [1, 2, 3]);
}
