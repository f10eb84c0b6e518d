//! The special tokens of encoders such as BERT.

use phalanx_data::Result;

use super::{Kind, Tokenizer, added_token};

/// The tokens around a text, behind it and in place of its words, which an encoder needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderTokens {
    /// Fills rows behind shorter texts.
    pub padding: u32,
    /// Stands in front of a text; a classifier reads its state.
    pub start: u32,
    /// Ends a text, or the first of two.
    pub end: u32,
    /// Stands in place of a masked token.
    pub mask: u32,
}

/// The names of each token by model family, that of BERT first.
const NAMES: [[&str; 2]; 4] = [["[PAD]", "<pad>"], ["[CLS]", "<s>"], ["[SEP]", "</s>"], ["[MASK]", "<mask>"]];

impl Tokenizer {
    /// Returns the tokens that encoders need, in a tokenizer that has them: this one, or it with BERT's names behind its
    /// own tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot be extended.
    pub fn for_encoder(&self) -> Result<(Self, EncoderTokens)> {
        let found =
            |tokenizer: &Self| NAMES.map(|names| names.iter().find_map(|name| tokenizer.token_named(name)));
        let known = found(self);
        let whole = match known.contains(&None) {
            true => self.with_tokens(
                known.iter().zip(NAMES).filter(|(id, _)| id.is_none()).map(|(_, [name, _])| name),
            )?,
            false => self.clone(),
        };
        let [padding, start, end, mask] = found(&whole).map(Option::unwrap_or_default);
        Ok((whole, EncoderTokens { padding, start, end, mask }))
    }

    /// Returns the token of this name; `None` if there is none.
    #[must_use]
    pub fn token_named(&self, name: &str) -> Option<u32> {
        match &self.tables.kind {
            Kind::Alphabet(_) => None,
            Kind::Pieces(pieces) => pieces.token_to_id(name),
        }
    }

    /// Returns true for tokens that stand for no text.
    #[must_use]
    pub fn are_special(&self) -> Vec<bool> {
        let mut special = vec![false; self.vocab()];
        if let Kind::Pieces(pieces) = &self.tables.kind {
            for (id, added) in pieces.get_added_tokens_decoder() {
                special[id as usize] = added.special;
            }
        }
        special
    }

    /// Returns this tokenizer with special tokens of these names behind its own.
    pub(super) fn with_tokens<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Self> {
        let unusable = |error: serde_json::Error| self.failed(error.to_string());
        let mut description: serde_json::Value = serde_json::from_str(self.json()).map_err(unusable)?;
        let added = names.zip(self.vocab()..).map(|(name, id)| added_token(id, name, true));
        match description["added_tokens"].as_array_mut() {
            Some(tokens) => tokens.extend(added),
            None => description["added_tokens"] = added.collect(),
        }
        Self::from_json(format!("{description:#}\n"), self.name())
    }
}
