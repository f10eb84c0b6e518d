//! Requests for texts.

use phalanx_run::TextUse;

/// A request for texts: continuations, texts with their masks filled in, or translations.
#[derive(Debug, Clone, PartialEq)]
pub struct Writing {
    /// The given texts.
    pub prompts: Vec<String>,
    /// Texts for each given one.
    pub samples: usize,
    /// The longest text, in tokens.
    pub max_tokens: usize,
    /// The choice of tokens.
    pub choice: TokenChoice,
    /// True to keep keys and values of earlier tokens, false to compute them anew for each token.
    pub cached: bool,
    /// The seed.
    pub seed: u64,
}

impl Writing {
    /// Returns a text as readers want it: a continuation after its prompt.
    pub fn whole(&self, text: &WrittenText, text_use: TextUse) -> String {
        match text_use {
            TextUse::Continue => format!("{}{}", self.prompts[text.prompt], text.text),
            TextUse::Fill | TextUse::Translate => text.text.clone(),
        }
    }
}

/// The way that the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenChoice {
    /// Tokens are drawn by their probabilities.
    Sample {
        /// The divisor of the logits; 0 = the most probable token.
        temperature: f64,
        /// Only this number of the most probable tokens is drawn from; 0 = all.
        top_k: usize,
        /// Only the most probable tokens that together have this probability are drawn from; 1 = all.
        top_p: f64,
        /// The divisor of positive logits of tokens that the text has; 1 = none.
        repetition_penalty: f64,
    },
    /// The most probable continuations that a search finds.
    Beams {
        /// The number of continuations that are kept at each step.
        width: usize,
        /// The exponent of the length that the logarithm of the probability is divided by.
        length_penalty: f64,
    },
}

impl TokenChoice {
    /// The usual temperature: a little safer than the probabilities.
    pub const TEMPERATURE: f64 = 0.8;
}

/// A text that was written for a given one.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenText {
    /// The number of the prompt.
    pub prompt: usize,
    /// The number of the sample of that prompt.
    pub sample: usize,
    /// The text.
    pub text: String,
    /// Its number of tokens.
    pub tokens: usize,
    /// The score of a search.
    pub score: Option<f64>,
}

/// A part of a text that is complete, while others are still being written.
#[derive(Debug, Clone, Copy)]
pub struct WrittenPart<'a> {
    /// The number of the prompt.
    pub prompt: usize,
    /// The number of the sample of that prompt.
    pub sample: usize,
    /// Whole characters.
    pub text: &'a str,
}

/// Texts of a trained model.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenTexts {
    /// The texts, prompt by prompt and sample by sample.
    pub texts: Vec<WrittenText>,
    /// The text that each is, for a given one.
    pub text_use: TextUse,
}
