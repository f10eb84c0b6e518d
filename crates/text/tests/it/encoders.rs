//! Texts for encoders: masked tokens, classes, and the tokens around a text.

use phalanx_data::collate::{Collate, PadTo, Samples};
use phalanx_data::{Dataset, Split};
use phalanx_text::{
    EncoderTokens, LabelKeys, LabelledCollation, LabelledDocument, LabelledDocuments, LabelledTexts,
    LabelledTokens, MaskedCollation, MaskedTexts, MaskingConfig, TokenBlocks, TokenPart, TokenStream,
    Tokenizer,
};

fn blocks(tokens: usize, length: usize) -> TokenBlocks {
    let tokens = (0..tokens).map(|token| 97 + (token % 26) as u32).collect();
    let part = TokenPart::whole(TokenStream::memory("letters", tokens));
    TokenBlocks::new("letters/train", vec![part], length).expect("sound")
}

#[test]
fn special_tokens_come_behind_those_of_a_tokenizer_that_lacks_them() {
    let (bytes, special) = Tokenizer::bytes().for_encoder().expect("can be extended");
    assert_eq!(bytes.vocab(), 260);
    assert_eq!([special.padding, special.start, special.end, special.mask], [256, 257, 258, 259]);
    assert_eq!(bytes.encode("h[MASK]é").expect("bytes").len(), 9, "no special token is in a text");
    assert_eq!(bytes.decode(&[special.start, 104, 195, 169, special.end]).expect("known"), "hé");
    // A file of it has them, too.
    let again = Tokenizer::from_json(bytes.json().to_owned(), "again").expect("a tokenizer");
    assert_eq!(again.for_encoder().expect("whole").1, special);
    assert_eq!(again.vocab(), 260);
    let words = Tokenizer::words(&["a", "[MASK]", "b"]).expect("words");
    let (words, special) = words.for_encoder().expect("can be extended");
    assert_eq!((special.mask, words.vocab()), (1, 6));
}

#[test]
fn hidden_tokens_follow_from_seed_epoch_and_text() {
    let (tokenizer, special) = Tokenizer::bytes().for_encoder().expect("can be extended");
    let masked = |seed| {
        let config = MaskingConfig { share: 0.15, seed };
        MaskedTexts::new(blocks(1010, 100), &tokenizer, special, config).expect("sound")
    };
    let texts = masked(1);
    assert_eq!(texts.len(), 11);
    let (mut replaced, mut kept, mut all) = (0, 0, 0);
    for epoch in 0..20 {
        for index in 0..texts.len() {
            let sequence = texts.get(index, epoch).expect("is there");
            let text = blocks(1010, 100).get(index, 0).expect("is there");
            let number = sequence.places.len();
            assert_eq!(texts.weight(index, 0).expect("is there"), number as f32);
            assert_eq!(number, if index == 10 { 2 } else { 15 });
            assert_eq!(sequence.tokens.len(), text.len() + 2);
            assert_eq!((sequence.tokens[0], sequence.tokens[text.len() + 1]), (special.start, special.end));
            let mut restored = sequence.tokens[1..=text.len()].to_vec();
            for (place, original) in sequence.places.iter().zip(&sequence.originals) {
                let found = std::mem::replace(&mut restored[*place as usize - 1], *original);
                all += 1;
                kept += usize::from(found == *original);
                replaced += usize::from(found != special.mask && found != *original);
            }
            assert_eq!(restored, text, "all other tokens stay");
        }
    }
    let share = |number: usize| number as f64 / f64::from(all);
    assert!(
        (share(replaced) - 0.1).abs() < 0.02 && (share(kept) - 0.1).abs() < 0.02,
        "{replaced} {kept} {all}"
    );
    assert_eq!(texts.get(3, 7).expect("is there"), masked(1).get(3, 7).expect("is there"));
    assert_ne!(texts.get(3, 7).expect("is there").places, texts.get(3, 8).expect("is there").places);
    assert_ne!(texts.get(3, 7).expect("is there").places, masked(2).get(3, 7).expect("is there").places);
}

#[test]
fn rows_are_padded_behind_their_lengths() {
    let (tokenizer, special) = Tokenizer::bytes().for_encoder().expect("can be extended");
    let config = MaskingConfig { share: 0.5, seed: 0 };
    let texts = MaskedTexts::new(blocks(7, 4), &tokenizer, special, config).expect("sound");
    let get = |index: usize| texts.get(index, 0);
    let batch = MaskedCollation::new(PadTo::Longest, special.padding)
        .collate(&mut Samples::new("letters", &[0, 1], 0, &get))
        .expect("fit");
    assert_eq!(batch.values::<u32>("lengths").expect("there"), [6, 5]);
    assert_eq!(batch.values::<u32>("tokens").expect("there")[11], special.padding);
    let mask = batch.values::<f32>("mask").expect("there");
    assert_eq!([mask[..6].iter().sum::<f32>(), mask[6..].iter().sum()], [2.0, 2.0]);
    let long = MaskedCollation::new(PadTo::Fixed(5), special.padding);
    let error = long.collate(&mut Samples::new("letters", &[0], 0, &get)).expect_err("too long");
    assert!(error.to_string().contains("6 tokens"), "{error}");
}

#[test]
fn every_token_is_in_one_block() {
    let all: Vec<u32> = (0..3).flat_map(|index| blocks(25, 10).get(index, 0).expect("is there")).collect();
    assert_eq!(all, (0..25).map(|token| 97 + token % 26).collect::<Vec<u32>>());
}

#[test]
fn texts_with_classes_are_read_from_files_and_folders() {
    let place = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
        std::fs::write(&path, text).expect("writes");
        path
    };
    let keys = LabelKeys { text: "text".into(), second: None, class: "label".into() };
    let open = |path: &std::path::Path| LabelledDocuments::open(path, &keys, 50).expect("sound");
    // Numbers are in the order of numbers.
    let lines: String =
        [10, 9, 10, 2].map(|label| format!("{{\"text\": \"t{label}\", \"label\": {label}}}\n")).concat();
    let read = open(&write("a.jsonl", &lines));
    assert_eq!(read.classes(), ["2", "9", "10"]);
    let of = |read: &LabelledDocuments, split| -> Vec<(String, u32)> {
        read.texts(split).iter().map(|text| (text.text.clone(), text.class)).collect()
    };
    assert_eq!(of(&read, Split::Train), [("t10".to_owned(), 2), ("t10".to_owned(), 2)]);
    assert_eq!(of(&read, Split::Test), [("t9".to_owned(), 1), ("t2".to_owned(), 0)]);
    let read =
        open(&write("b.tsv", "\u{feff}id\tlabel\ttext\r\n1\tgood\tfine words\r\n2\tbad\tpoor words\r\n"));
    assert_eq!(read.classes(), ["bad", "good"]);
    assert_eq!(of(&read, Split::Test), [("poor words".to_owned(), 0)]);
    for (name, text) in [
        ("reviews/train/pos/1.txt", "nice"),
        ("reviews/train/neg/1.txt", "dull"),
        ("reviews/test/pos/2.txt", "great"),
    ] {
        write(name, text);
    }
    let read = open(&place.path().join("reviews"));
    assert_eq!(read.classes(), ["neg", "pos"]);
    assert_eq!(of(&read, Split::Train), [("dull".to_owned(), 0), ("nice".to_owned(), 1)]);
    assert_eq!(of(&read, Split::Test), [("great".to_owned(), 1)]);
    let only = write("only/train.jsonl", &lines);
    let error = LabelledDocuments::open(&only, &keys, 50).expect_err("no test split");
    assert!(error.to_string().contains("0 for testing"), "{error}");
}

#[test]
fn tables_of_hugging_face_keep_the_order_of_their_classes() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let place = tempfile::tempdir().expect("a folder");
    for split in ["train", "test"] {
        let bytes = std::fs::read(fixtures.join(format!("labelled_{split}.parquet"))).expect("there");
        std::fs::write(place.path().join(format!("{split}-00000-of-00001.parquet")), bytes).expect("writes");
    }
    let keys = |text: &str, class: &str| LabelKeys { text: text.into(), second: None, class: class.into() };
    let open = |path: &std::path::Path, keys: &LabelKeys| LabelledDocuments::open(path, keys, 50);
    let read = open(place.path(), &keys("text", "label")).expect("sound");
    assert_eq!(read.classes(), ["world", "sports", "business"]);
    let of = |split| -> Vec<(&str, u32)> {
        read.texts(split).iter().map(|text| (text.text.as_str(), text.class)).collect()
    };
    assert_eq!(of(Split::Train)[3], ("a record, ünïcode: 走", 1));
    assert_eq!(of(Split::Test), [("prices rose", 2), ("peace", 0)]);
    // A class that the table does not name.
    std::fs::write(place.path().join("train.tsv"), "text\tlabel\nmore\tweather\n").expect("writes");
    let error = open(place.path(), &keys("text", "label")).expect_err("weather").to_string();
    assert!(error.contains("a text has the class \"weather\"") && error.contains("business"), "{error}");
    std::fs::remove_file(place.path().join("train.tsv")).expect("there");
    // Numbers without names, and texts as classes.
    let file = place.path().join("train-00000-of-00001.parquet");
    std::fs::rename(&file, place.path().join("rows.parquet")).expect("there");
    let file = place.path().join("rows.parquet");
    assert_eq!(open(&file, &keys("text", "idx")).expect("sound").classes(), ["0", "1", "2", "3"]);
    assert_eq!(open(&file, &keys("text", "text")).expect("sound").classes()[0], "a goal in the last minute");
    for (keys, words) in [
        (keys("body", "label"), "no column body; it has text, idx, label"),
        (keys("idx", "label"), "column idx is INT32, not byte array"),
    ] {
        let error = open(&file, &keys).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let whole = std::fs::read(&file).expect("there");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writes");
    let error = open(&file, &keys("text", "label")).expect_err("cut").to_string();
    assert!(error.contains("rows.parquet"), "{error}");
}

#[test]
fn pairs_of_texts_have_a_class_together() {
    let place = tempfile::tempdir().expect("a folder");
    let keys = LabelKeys { text: "a".into(), second: Some("b".into()), class: "label".into() };
    let open = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).expect("writes");
        LabelledDocuments::open(&path, &keys, 50)
    };
    let line = |n: usize| format!("{{\"a\": \"q{n}\", \"b\": \"answer {n}\", \"label\": {}}}\n", n % 2);
    let tsv = "label\tb\ta\n0\tanswer 0\tq0\n1\tanswer 1\tq1\n0\tanswer 2\tq2\n1\tanswer 3\tq3\n";
    let expected = [LabelledDocument { text: "q1".into(), second: Some("answer 1".into()), class: 1 }];
    for (name, text) in [("x.jsonl", (0..4).map(line).collect::<String>()), ("x.tsv", tsv.to_owned())] {
        let read = open(name, &text).expect("sound");
        assert_eq!(read.texts(Split::Test)[..1], expected, "{name}");
        assert_eq!(read.texts(Split::Train)[1].second.as_deref(), Some("answer 2"), "{name}");
    }
    let error = open("y.jsonl", "{\"a\": \"q\", \"label\": 1}\n").expect_err("no second text");
    assert!(error.to_string().contains("no text or number under \"b\""), "{error}");
    // Their rows: types 1 in second texts.
    let special = EncoderTokens { padding: 0, start: 1, end: 2, mask: 3 };
    let tokens = |second: Option<Vec<u32>>| LabelledTokens { tokens: vec![7, 8], second, class: 1 };
    let texts = LabelledTexts::new("x", vec![tokens(Some(vec![9, 9, 9])), tokens(None)], special, 7);
    let get = |index: usize| texts.get(index, 0);
    let batch = LabelledCollation::new(PadTo::Longest, special.padding)
        .collate(&mut Samples::new("x", &[0, 1], 0, &get))
        .expect("fit");
    assert_eq!(batch.values::<u32>("tokens").expect("there"), [1, 7, 8, 2, 9, 9, 2, 1, 7, 8, 2, 0, 0, 0]);
    assert_eq!(batch.values::<u32>("types").expect("there"), [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(batch.values::<u32>("lengths").expect("there"), [7, 4]);
}
