//! The special tokens of translation models.

use phalanx_data::Result;

use super::Tokenizer;

/// The tokens of translations that stand for no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairTokens {
    /// Fills rows behind shorter texts.
    pub padding: u32,
    /// The first token that a decoder sees; the padding, as in Marian.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
}

impl Tokenizer {
    /// Returns the tokens that translations need, in a tokenizer that has them: this one, or it with `</s>` and `<pad>` behind
    /// its own tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot be extended.
    pub fn for_pairs(&self) -> Result<(Self, PairTokens)> {
        let padding =
            |tokenizer: &Self| ["<pad>", "[PAD]"].iter().find_map(|name| tokenizer.token_named(name));
        let names = [(self.end_of_text(), "</s>"), (padding(self), "<pad>")];
        let missing: Vec<&str> = names.iter().filter(|(id, _)| id.is_none()).map(|(_, name)| *name).collect();
        let whole = if missing.is_empty() { self.clone() } else { self.with_tokens(missing.into_iter())? };
        let (padding, end) = (padding(&whole).unwrap_or_default(), whole.end_of_text().unwrap_or_default());
        Ok((whole, PairTokens { padding, start: padding, end }))
    }
}
