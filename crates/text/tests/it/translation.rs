//! The tokenizers of published Marian models, against transformers (`fixtures/marian/marian.py`).

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_text::{MARIAN_FILES, PairTokens, Side, Tokenizer, TranslationTokenizer};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/marian")
}

fn opened(path: &Path) -> TranslationTokenizer {
    TranslationTokenizer::of_marian(path).expect("sound").expect("its three files")
}

#[test]
fn tokens_of_both_sides_are_those_of_transformers() {
    let tokenizer = opened(&folder());
    assert_eq!(tokenizer.special().expect("has them"), PairTokens { padding: 56, start: 56, end: 0 });
    assert_eq!(tokenizer.vocab(), 57);
    let text = fs::read_to_string(folder().join("expected.json")).expect("a fixture");
    let rows: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert_eq!(rows.len(), 10);
    for row in rows {
        let text = row["text"].as_str().expect("a text").to_owned();
        let ids = |side: &str| serde_json::from_value::<Vec<u32>>(row[side].clone()).expect("tokens");
        let encoded =
            |side| tokenizer.encode_all(side, std::slice::from_ref(&text)).expect("encodes").remove(0);
        assert_eq!(encoded(Side::Source), ids("source"), "source of {text:?}");
        assert_eq!(encoded(Side::Target), ids("target"), "target of {text:?}");
        assert_eq!(
            tokenizer.decode(&ids("target")).expect("tokens"),
            row["decoded"].as_str().expect("a text")
        );
    }
    // The text of a special token is text.
    let end = tokenizer.encode_all(Side::Source, &["</s>".to_owned()]).expect("encodes").remove(0);
    assert!(!end.contains(&0), "{end:?}");
    assert!(tokenizer.decode(&[57]).is_err(), "no such token");
}

#[test]
fn the_three_files_are_found_by_any_of_them_and_kept_as_they_are() {
    let tokenizer = opened(&folder().join("vocab.json"));
    let files = tokenizer.files();
    assert_eq!(files.iter().map(|(name, _)| *name).collect::<Vec<_>>(), MARIAN_FILES);
    for (name, contents) in files {
        assert_eq!(fs::read(folder().join(name)).expect("is there"), contents, "{name}");
    }
    let other = tempfile::tempdir().expect("a folder");
    assert!(TranslationTokenizer::of_marian(other.path()).expect("nothing is damaged").is_none());
    let bytes = TranslationTokenizer::Shared(Tokenizer::bytes());
    assert!(bytes.special().is_err(), "bytes have no end");
    assert_eq!(bytes.files()[0].0, phalanx_text::TOKENIZER_FILE);
}

#[test]
fn damaged_and_missing_files_are_named() {
    let place = tempfile::tempdir().expect("a folder");
    let copy = |without: &str| {
        for name in MARIAN_FILES.iter().filter(|name| **name != without) {
            fs::copy(folder().join(name), place.path().join(name)).expect("copied");
        }
    };
    let problem = || TranslationTokenizer::of_marian(place.path()).expect_err("refused").to_string();
    copy("target.spm");
    assert!(problem().contains("target.spm"), "{}", problem());
    copy("");
    for (name, contents, words) in [
        ("target.spm", &b"\x0a\x7f"[..], "target.spm"),
        ("vocab.json", b"[1]", "vocab.json: not an object of tokens"),
        ("vocab.json", br#"{"</s>": 0, "<unk>": 1}"#, "it has no token `<pad>`"),
        ("vocab.json", br#"{"</s>": 0, "<unk>": 1, "<pad>": 4000000000}"#, "its largest token is 4000000000"),
    ] {
        copy("");
        fs::write(place.path().join(name), contents).expect("written");
        assert!(problem().contains(words), "{}", problem());
    }
}
