//! Decoding token by token.

use phalanx_data::Result;

use super::Tokenizer;

/// The number of tokens that are decoded together with the new ones, for decoders that look at the neighbours.
const CONTEXT: usize = 4;

/// The decoding of a text whose tokens arrive one by one. It returns whole characters: the bytes of a character may be
/// spread over tokens.
#[derive(Debug, Clone)]
pub struct TextStream {
    tokenizer: Tokenizer,
    /// The last tokens.
    tokens: Vec<u32>,
    /// The number of them whose text was returned.
    returned: usize,
}

impl TextStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), returned: 0 }
    }

    /// Adds a token and returns the text that is complete with it; it may be empty.
    ///
    /// # Errors
    /// If the number is not a token.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let before = self.tokenizer.decode(&self.tokens[..self.returned])?;
        let now = self.tokenizer.decode(&self.tokens)?;
        // An unfinished character is shown as U+FFFD. One that is still unfinished after four bytes is damaged.
        let pending = self.tokens.len() - self.returned;
        if now.ends_with(char::REPLACEMENT_CHARACTER) && pending < 4 {
            return Ok(String::new());
        }
        Ok(self.advance(&before, &now))
    }

    /// Returns the text of tokens that did not complete a character.
    ///
    /// # Errors
    /// Never in practice: all tokens were checked.
    pub fn finish(&mut self) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.returned])?;
        let now = self.tokenizer.decode(&self.tokens)?;
        Ok(self.advance(&before, &now))
    }

    /// Marks all tokens as returned and keeps the last few.
    fn advance(&mut self, before: &str, now: &str) -> String {
        // Some decoders change the end of earlier text, such as a space in front of a comma.
        let same = now.char_indices().zip(before.chars()).take_while(|((_, one), other)| one == other);
        let new = same.last().map_or(now, |((at, last), _)| &now[at + last.len_utf8()..]).to_owned();
        let dropped = self.tokens.len().saturating_sub(CONTEXT);
        self.tokens.drain(..dropped);
        self.returned = self.tokens.len();
        new
    }
}
