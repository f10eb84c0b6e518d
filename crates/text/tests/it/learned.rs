//! Learned tokenizers.

use phalanx_text::{PieceKind, Tokenizer, WordCounts, learn};
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model as _, Trainer as _};

use super::text;

const KINDS: [PieceKind; 3] = [PieceKind::Bpe, PieceKind::WordPiece, PieceKind::Unigram];

fn learned(kind: PieceKind, texts: &[String], vocab: usize) -> Tokenizer {
    let mut counts = WordCounts::new(kind);
    counts.add_all(texts).expect("text");
    learn(&counts, vocab).expect("enough room")
}

#[test]
fn the_same_texts_give_the_same_bytes_in_any_order() {
    let lines: Vec<String> = text().split_inclusive('\n').map(str::to_owned).collect();
    let mut turned = lines.clone();
    turned.reverse();
    for kind in KINDS {
        let (one, other) = (learned(kind, &lines, 400), learned(kind, &turned, 400));
        assert_eq!(one.json(), other.json(), "{kind:?}");
        let fewer = learned(kind, &lines[1..], 400);
        assert_eq!(fewer.vocab(), one.vocab(), "{kind:?}");
    }
}

#[test]
fn byte_level_pieces_are_those_of_the_peers_trainer() {
    let text = text();
    let ours = learned(PieceKind::Bpe, std::slice::from_ref(&text), 290);
    let mut counts = WordCounts::new(PieceKind::Bpe);
    counts.add(&text).expect("text");
    let mut trainer = BpeTrainer::builder()
        .vocab_size(290)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(vec![tokenizers::AddedToken::from("<|endoftext|>".to_owned(), true)])
        .initial_alphabet(tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect())
        .build();
    let cutter = tokenizers::pre_tokenizers::byte_level::ByteLevel::new(false, true, true);
    let cut = |text: &str| {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizer as _};
        let mut parts = tokenizers::PreTokenizedString::from(text);
        cutter.pre_tokenize(&mut parts)?;
        let words = parts.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(words.into_iter().map(|(word, _, _)| word.to_owned()).collect())
    };
    trainer.feed([text.as_str()].into_iter(), cut).expect("text");
    let mut model = tokenizers::models::bpe::BPE::default();
    trainer.train(&mut model).expect("words");
    assert_eq!(ours.vocab(), 290);
    for id in 0..290 {
        assert_eq!(ours.piece(id), model.id_to_token(id), "token {id}");
    }
}

#[test]
fn texts_come_back() {
    let text = text();
    for kind in [PieceKind::Bpe, PieceKind::Unigram] {
        let tokenizer = learned(kind, std::slice::from_ref(&text), 400);
        for text in
            [text.as_str(), "A line.\n\nAnother – ünknown 🚀", " two  spaces ", "<0x41> </s> <unk>", ""]
        {
            let tokens = tokenizer.encode(text).expect("any text");
            let back = tokenizer.decode(&tokens).expect("tokens");
            // The word mark of Unigram stands for one space.
            assert_eq!(back.trim_start(), text.trim_start(), "{kind:?}");
        }
        let tokens = tokenizer.encode(&text).expect("any text");
        assert!(tokens.len() * 2 < text.chars().count(), "{kind:?}: {} tokens", tokens.len());
        let end = tokenizer.end_of_text().expect("one was added");
        assert!(!tokens.contains(&end));
        assert!(
            !tokenizer.encode("<|endoftext|>").expect("any text").contains(&end),
            "text is no special token"
        );
    }
    let words = learned(PieceKind::WordPiece, &[text], 120);
    let tokens = words.encode("The naïve theory").expect("any text");
    assert_eq!(words.decode(&tokens).expect("tokens"), "the naive theory");
    assert_eq!(words.piece(0).as_deref(), Some("[PAD]"));
}

#[test]
fn byte_lengths_add_up_to_the_text() {
    let text = text();
    for tokenizer in [
        learned(PieceKind::Bpe, std::slice::from_ref(&text), 300),
        Tokenizer::bytes(),
        Tokenizer::characters(&text).expect("a text"),
    ] {
        let lengths = tokenizer.byte_lengths();
        let tokens = tokenizer.encode(&text).expect("its own text");
        let bytes: usize = tokens.iter().map(|&token| lengths[token as usize] as usize).sum();
        assert_eq!(bytes, text.len(), "{}", tokenizer.name());
    }
    let unigram = learned(PieceKind::Unigram, std::slice::from_ref(&text), 400);
    let tokens = unigram.encode(&text).expect("any text");
    let bytes: usize = tokens.iter().map(|&token| unigram.byte_lengths()[token as usize] as usize).sum();
    // The mark in front of the text stands for a space that is not there.
    assert_eq!(bytes, text.len() + 1);
}

#[test]
fn vocabularies_without_room_are_refused() {
    for kind in KINDS {
        let mut counts = WordCounts::new(kind);
        assert!(learn(&counts, 1000).expect_err("no words").to_string().contains("no words"));
        counts.add("some words").expect("text");
        assert!(learn(&counts, 5).expect_err("no room").to_string().contains("at least"), "{kind:?}");
    }
    assert!("sentence".parse::<PieceKind>().is_err());
}
