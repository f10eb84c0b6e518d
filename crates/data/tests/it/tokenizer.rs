//! The tokenizer against ids of openai/CLIP.

use std::path::Path;

use phalanx_data::{ClipTokenizer, DataError};

#[test]
fn ids_equal_the_reference() {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/clip_tokens.json")).expect("a fixture of this project");
    let tokenizer = ClipTokenizer::new().expect("built in");
    let (texts, ids) =
        (fixture["texts"].as_array().expect("texts"), fixture["token_ids"].as_array().expect("ids"));
    assert_eq!(texts.len(), ids.len());
    for (text, ids) in texts.iter().zip(ids) {
        let text = text.as_str().expect("a text");
        let expected: Vec<u32> =
            ids.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect();
        assert_eq!(tokenizer.tokenize(text), expected, "{text:?}");
    }
}

#[test]
fn texts_have_start_and_end_tokens_and_are_refused_when_too_long() {
    let tokenizer = ClipTokenizer::new().expect("built in");
    assert_eq!((tokenizer.vocab(), tokenizer.start(), tokenizer.end()), (49_408, 49_406, 49_407));
    assert_eq!(
        tokenizer.encode("a photo of a dog", 9).expect("fits"),
        [49406, 320, 1125, 539, 320, 1929, 49407, 0, 0]
    );
    assert_eq!(tokenizer.encode("", 3).expect("fits"), [49406, 49407, 0]);
    match tokenizer.encode("a photo of a dog", 6) {
        Err(DataError::TextTooLong { tokens: 5, total: 7, context: 6, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(tokenizer.encode_truncated("a photo of a dog", 6), [49406, 320, 1125, 539, 320, 49407]);
}

#[test]
fn decoding_returns_the_cleaned_text() {
    let tokenizer = ClipTokenizer::new().expect("built in");
    for (text, back) in [
        ("A small bird, isn\u{2019}t it?", "a small bird , isn 't it ?"),
        ("na\u{ef}ve  caf\u{e9}", "na\u{ef}ve caf\u{e9}"),
        ("\u{65e5}\u{672c} \u{1f642}", "\u{65e5}\u{672c} \u{1f642}"),
        ("\u{ff21}\u{ff22} \u{fb01}ne &amp;amp; &lt;b&gt;", "ab fine & < b >"),
    ] {
        let ids = tokenizer.encode(text, 77).expect("fits");
        assert_eq!(tokenizer.decode(&ids), back, "{text:?}");
    }
}

#[test]
fn a_small_vocabulary_encodes_any_text() {
    let tokenizer = ClipTokenizer::with_vocab(2048).expect("between the bounds");
    assert_eq!((tokenizer.start(), tokenizer.end()), (2046, 2047));
    for text in ["a small red circle", "z\u{fc}rich \u{1f642} xylophone"] {
        let ids = tokenizer.tokenize(text);
        assert!(ids.iter().all(|id| *id < 2046));
        assert_eq!(tokenizer.decode(&ids), text);
    }
    for vocab in [0, 513, 49_409] {
        assert!(ClipTokenizer::with_vocab(vocab).is_err(), "{vocab}");
    }
}

#[test]
fn a_broken_file_of_merges_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("merges.txt.gz");
    assert!(matches!(ClipTokenizer::from_merges_file(&path), Err(DataError::Io { .. })));
    std::fs::write(&path, b"not gzip").expect("writable");
    let error = ClipTokenizer::from_merges_file(&path).expect_err("not gzip").to_string();
    assert!(error.contains("merges.txt.gz"), "{error}");
    assert!(Path::new(&path).exists());
}
