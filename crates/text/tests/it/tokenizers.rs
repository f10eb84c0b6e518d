//! Tokenizers of files.

use std::fs;

use phalanx_text::{PieceKind, Tokenizer, WordCounts, learn};

use super::text;

/// A field of a protocol buffer: its number, its kind and its bytes.
fn field(number: u64, kind: u64, bytes: &[u8]) -> Vec<u8> {
    [&[(number << 3 | kind) as u8][..], bytes].concat()
}

fn message(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut length = Vec::new();
    let mut rest = bytes.len();
    while rest >= 128 {
        length.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    length.push(rest as u8);
    field(number, 2, &[&length[..], bytes].concat())
}

/// A model of SentencePiece of pieces with scores and kinds.
fn sentence_piece(algorithm: u8, byte_fallback: bool, pieces: &[(&str, f32, u8)]) -> Vec<u8> {
    let mut model = Vec::new();
    for (text, score, kind) in pieces {
        let piece =
            [message(1, text.as_bytes()), field(2, 5, &score.to_le_bytes()), field(3, 0, &[*kind])].concat();
        model.extend(message(1, &piece));
    }
    // Field 35 has a key of two bytes.
    let trainer = [field(3, 0, &[algorithm]), vec![0x98, 0x02, u8::from(byte_fallback)]].concat();
    model.extend(message(2, &trainer));
    model.extend(message(3, &field(3, 0, &[1])));
    model
}

#[test]
fn a_text_with_the_name_of_a_special_token_does_not_become_it() {
    // Published descriptions give their special tokens the highest score.
    let description = |pieces: &str| {
        format!(
            r#"{{"added_tokens": [{{"id": 0, "content": "</s>", "special": true}}, {{"id": 1, "content": "<unk>", "special": true}}],
            "model": {{"type": "Unigram", "unk_id": 1, "vocab": [["</s>", 0.0], ["<unk>", 0.0], ["a", -1.0] {pieces}]}}}}"#
        )
    };
    let added = |json: String| {
        let whole =
            r#""single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special""#;
        let json = json.replace("\"special\"", whole);
        Tokenizer::from_json(json, "unigram").expect("a model")
    };
    let known = added(description(r#", ["<", -2.0], ["/", -2.0], ["s", -2.0], [">", -2.0]"#));
    assert_eq!(known.encode("a</s>a").expect("encodes"), [2, 3, 4, 5, 6, 2]);
    assert_eq!(known.end_of_text(), Some(0));
    let unknown = added(description(""));
    assert_eq!(unknown.encode("a</s>").expect("encodes"), [2, 1]);
    let batch = unknown.encode_all(&["</s>".to_owned(), "aa".to_owned()]).expect("encodes");
    assert_eq!(batch, [vec![1], vec![2, 2]]);
}

#[test]
fn models_of_sentence_piece_cut_by_probability_or_by_merges() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.model");
    let special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)];
    let pieces =
        [("▁", -3.0, 1), ("a", -3.0, 1), ("b", -3.0, 1), ("▁a", -2.5, 1), ("ab", -2.0, 1), ("▁ab", -6.0, 1)];
    fs::write(&file, sentence_piece(1, false, &[&special[..], &pieces].concat())).expect("written");
    let unigram = Tokenizer::open(folder.path()).expect("a model");
    // ▁ + ab = -5 is better than ▁a + b = -5.5 and ▁ab = -6.
    assert_eq!(unigram.encode("ab").expect("known"), [3, 7]);
    assert_eq!((unigram.end_of_text(), unigram.vocab()), (Some(2), 9));
    assert_eq!(unigram.decode(&[3, 7, 3, 4]).expect("known"), "ab a");
    let bytes: Vec<(String, f32, u8)> =
        (0..=255).map(|byte: u8| (format!("<0x{byte:02X}>"), 0.0, 6)).collect();
    let bytes: Vec<(&str, f32, u8)> =
        bytes.iter().map(|(text, score, kind)| (text.as_str(), *score, *kind)).collect();
    // Of merges the best score is first: a b, then ▁ ab.
    let merged =
        [("▁", -9.0, 1), ("a", -9.0, 1), ("b", -9.0, 1), ("ab", -1.0, 1), ("▁a", -2.0, 1), ("▁ab", -3.0, 1)];
    fs::write(&file, sentence_piece(2, true, &[&special[..], &bytes, &merged].concat())).expect("written");
    let bpe = Tokenizer::open(&file).expect("a model");
    let first = 3 + 256;
    assert_eq!(bpe.encode("ab a").expect("known"), [first + 5, first + 4]);
    assert_eq!(bpe.encode("é").expect("bytes")[1..], [3 + 0xC3, 3 + 0xA9]);
    assert_eq!(bpe.decode(&bpe.encode("é ab").expect("known")).expect("tokens"), "é ab");
    for damage in [&b"\x0a\xff"[..], b"", b"PK\x03\x04"] {
        fs::write(&file, damage).expect("written");
        assert!(Tokenizer::open(&file).expect_err("damaged").to_string().contains("tokenizer.model"));
    }
}

#[test]
fn the_two_files_of_gpt2_are_a_tokenizer() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("vocab.json", r#"{"h": 0, "i": 1, "Ġ": 2, "hi": 3, "Ġhi": 4, "<|endoftext|>": 5}"#);
    write("merges.txt", "#version: 0.2\nh i\nĠ hi\n");
    let tokenizer = Tokenizer::open(folder.path()).expect("two files");
    assert_eq!(tokenizer.encode("hi hi h").expect("known"), [3, 4, 2, 0]);
    assert_eq!(tokenizer.end_of_text(), Some(5));
    assert_eq!(tokenizer.decode(&[3, 4, 5]).expect("known"), "hi hi");
    write("merges.txt", "#version: 0.2\nh i j\n");
    assert!(Tokenizer::open(folder.path()).expect_err("no pair").to_string().contains("line 2"));
    fs::remove_file(folder.path().join("merges.txt")).expect("there");
    assert!(Tokenizer::open(folder.path()).expect_err("half").to_string().contains("merges.txt"));
}

#[test]
fn alphabets_come_back_from_their_files() {
    let characters = Tokenizer::characters("hello 🦀").expect("a text");
    for tokenizer in [Tokenizer::bytes(), characters] {
        let again = Tokenizer::from_json(tokenizer.json().to_owned(), "again").expect("its own");
        let text = "hello";
        assert_eq!(again.encode(text).expect("known"), tokenizer.encode(text).expect("known"));
        assert_eq!(again.json(), tokenizer.json());
        // Other programs read the same tokens from the file.
        let peer = tokenizers::Tokenizer::from_bytes(tokenizer.json().as_bytes()).expect("its format");
        let encoded = peer.encode_fast(text, false).expect("known");
        assert_eq!(encoded.get_ids(), tokenizer.encode(text).expect("known"));
        assert_eq!(peer.decode(encoded.get_ids(), true).expect("known"), text);
    }
    let characters = Tokenizer::characters("abc").expect("a text");
    assert!(characters.encode("abz").expect_err("z is new").to_string().contains("'z'"));
    assert!(characters.decode(&[3]).is_err() && Tokenizer::characters("").is_err());
}

#[test]
fn streams_return_whole_characters() {
    let text = text();
    let mut counts = WordCounts::new(PieceKind::Bpe);
    counts.add(&text).expect("text");
    let mut others = WordCounts::new(PieceKind::Unigram);
    others.add(&text).expect("text");
    let learned = learn(&counts, 280).expect("room");
    for tokenizer in [Tokenizer::bytes(), learned, learn(&others, 400).expect("room")] {
        let tokens = tokenizer.encode("naïve 🦀🦀 the thing, unknown: ☃").expect("any text");
        let mut stream = tokenizer.stream();
        let mut parts = Vec::new();
        for token in &tokens {
            parts.push(stream.push(*token).expect("a token"));
        }
        parts.push(stream.finish().expect("tokens"));
        assert!(parts.iter().all(|part| !part.contains(char::REPLACEMENT_CHARACTER)), "{parts:?}");
        assert_eq!(parts.concat(), tokenizer.decode(&tokens).expect("tokens"), "{}", tokenizer.name());
    }
    // Some decoders join what stood apart.
    let mut words = WordCounts::new(PieceKind::WordPiece);
    words.add("hello , world . hello").expect("text");
    let words = learn(&words, 40).expect("room");
    let tokens = words.encode("hello, world. hello").expect("known");
    let mut stream = words.stream();
    let parts: Vec<String> = tokens.iter().map(|token| stream.push(*token).expect("a token")).collect();
    assert_eq!(parts.concat(), "hello, world. hello");
    // Bytes that are no character do not hold the text back.
    let mut stream = Tokenizer::bytes().stream();
    let parts: Vec<String> =
        [0xff, 0x41, 0x42].iter().map(|byte| stream.push(*byte).expect("a byte")).collect();
    assert_eq!(parts.concat() + &stream.finish().expect("bytes"), "\u{fffd}AB");
}

#[test]
fn files_that_are_no_tokenizers_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    for text in ["", "{", "[]", r#"{"version": "1.0", "model": {"type": "Unheard", "vocab": {}}}"#] {
        fs::write(&file, text).expect("written");
        let error = Tokenizer::open(folder.path()).expect_err("no tokenizer").to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
    let missing = Tokenizer::open(folder.path().join("other.json")).expect_err("missing").to_string();
    assert!(missing.contains("other.json"), "{missing}");
    let empty = tempfile::tempdir().expect("a folder");
    assert!(Tokenizer::open(empty.path()).expect_err("empty").to_string().contains("vocab.json"));
}

#[test]
fn words_of_a_list_are_tokens() {
    let words = Tokenizer::words(&["a", "cat", "."]).expect("words");
    assert_eq!(words.encode("cat . a").expect("known"), [1, 2, 0]);
    assert_eq!(words.decode(&[0, 1, 2]).expect("known"), "a cat .");
    assert!(words.encode("a dog").expect_err("no dog").to_string().contains("a word of the text"));
    let bytes: Vec<u32> = words.byte_lengths();
    assert_eq!(bytes, [1, 3, 1]);
}
