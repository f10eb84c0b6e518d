//! The special tokens that matter for training and for writing, and the lengths of the others.

use std::collections::BTreeSet;

use serde_json::Value;

use super::NEVER;

/// The names of the token that ends a document, by model family; the first that a tokenizer has is used.
const ENDS: [&str; 8] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]"];

/// Finds the token that ends a document among the special tokens, or, as SentencePiece has it, among the pieces.
pub(super) fn end_of_text(tokenizer: &tokenizers::Tokenizer) -> Option<u32> {
    ENDS.iter().find_map(|name| tokenizer.token_to_id(name))
}

/// The special tokens of a Unigram model, which are among the pieces that texts are cut into: a text with `</s>` would end there.
#[derive(Debug)]
pub(super) struct KeptApart {
    special: BTreeSet<u32>,
    /// The token of text that has none.
    unknown: u32,
}

impl KeptApart {
    /// Returns those of a description, if it is of such a model.
    pub(super) fn of(description: &Value) -> Option<Self> {
        let model = &description["model"];
        if model["type"] != "Unigram" {
            return None;
        }
        let unknown = u32::try_from(model["unk_id"].as_u64()?).ok()?;
        let added = description["added_tokens"].as_array()?.iter();
        let special = added.filter(|token| token["special"] == true);
        let special = special.filter_map(|token| u32::try_from(token["id"].as_u64()?).ok()).collect();
        Some(Self { special, unknown })
    }

    /// Returns the description with scores by which no known text is cut into special tokens.
    pub(super) fn description(&self, description: &Value) -> String {
        let mut changed = description.clone();
        for id in &self.special {
            if let Some(score) = changed.pointer_mut(&format!("/model/vocab/{id}/1")) {
                *score = NEVER.into();
            }
        }
        changed.to_string()
    }

    /// Returns a token of a text, which is no special one: its characters are unknown.
    pub(super) fn text(&self, token: u32) -> u32 {
        if self.special.contains(&token) { self.unknown } else { token }
    }
}

/// Returns the number of bytes of text of each token, by the decoder that the description names.
pub(super) fn byte_lengths(tokenizer: &tokenizers::Tokenizer, json: &str, vocab: usize) -> Vec<u32> {
    let parsed: Value = serde_json::from_str(json).unwrap_or_default();
    let decoder = parsed["decoder"].to_string();
    let is_byte_level = decoder.contains("\"ByteLevel\"");
    let is_word_piece = decoder.contains("\"WordPiece\"");
    let added = tokenizer.get_added_tokens_decoder();
    let of = |token: u32| -> u32 {
        let special = added.get(&token).is_some_and(|added| added.special);
        let Some(piece) = tokenizer.id_to_token(token).filter(|_| !special) else { return 0 };
        let length = if is_byte_level {
            piece.chars().count()
        } else if is_word_piece {
            piece.strip_prefix("##").map_or(piece.len() + 1, str::len)
        } else if piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>') {
            1
        } else {
            piece.replace('▁', " ").len()
        };
        length as u32
    };
    (0..vocab as u32).map(of).collect()
}
