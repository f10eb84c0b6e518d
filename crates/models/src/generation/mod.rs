//! Continuation of texts: sampling token by token, and beam search.

mod beams;
mod sampling;

use phalanx_tensor::{Key, Result, Tape, TensorError, Value, ops};

use crate::cache::KeyValueCache;
use crate::language_model::LanguageModel;
use crate::token_input::TokenInput;

pub use beams::{Beam, BeamOptions, beam_search};
pub use sampling::Sampling;

/// A text to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens; at least one.
    pub tokens: Vec<u32>,
    /// The number of the sample. Random numbers follow from the seed, this number and the place in the text alone, so a text is
    /// the same in any batch.
    pub sample: u64,
}

/// The settings of [`generate`].
#[derive(Debug, Clone, Copy)]
pub struct GenerationOptions {
    /// The choice of tokens.
    pub sampling: Sampling,
    /// The longest continuation, in tokens.
    pub max_tokens: usize,
    /// The token that ends a text.
    pub end: Option<u32>,
    /// Tokens from this number on are never chosen: the model may have more rows than the tokenizer has tokens.
    pub vocab: usize,
    /// True to keep keys and values of earlier tokens, false to compute them anew for each token.
    pub cached: bool,
    /// True to stop once all texts have ended, false to take `max_tokens` steps in any case: ranks that gather parameters together
    /// need the same number of steps.
    pub stops_early: bool,
}

/// A text that is being continued.
struct Row {
    tokens: Vec<u32>,
    prompt: usize,
    sample: u64,
    ended: bool,
}

/// The rows of a batch with what the model has seen of them.
struct Batch<'a> {
    model: &'a dyn LanguageModel,
    tape: &'a Tape,
    cache: Option<KeyValueCache>,
    /// The first token of each text that the model sees.
    begins: Vec<usize>,
    /// The columns of padding in front of each row.
    padding: Vec<usize>,
}

/// Continues texts, all at once. `take` gets each new token with the number of its text; texts end at their own times. A text
/// that grows beyond the context continues from its last half.
///
/// # Errors
/// If a prompt has no token or is as long as the context, and errors of the model and of `take`.
pub fn generate(
    model: &dyn LanguageModel,
    tape: &Tape,
    prompts: &[Prompt],
    options: &GenerationOptions,
    take: &mut dyn FnMut(usize, u32) -> Result<()>,
) -> Result<Vec<Vec<u32>>> {
    for prompt in prompts {
        check_prompt(model, &prompt.tokens)?;
    }
    let mut rows: Vec<Row> = prompts.iter().map(Row::new).collect();
    let mut batch = Batch { model, tape, cache: None, begins: Vec::new(), padding: Vec::new() };
    for place in 0..options.max_tokens {
        if options.stops_early && rows.iter().all(|row| row.ended) {
            break;
        }
        let texts: Vec<&[u32]> = rows.iter().map(|row| row.tokens.as_slice()).collect();
        let logits = batch.next_logits(&texts, options.cached)?;
        for (number, (row, mut logits)) in rows.iter_mut().zip(logits).enumerate() {
            // Rows that have ended stay in the batch; their tokens are not looked at.
            logits.truncate(options.vocab.max(1));
            let key = Key::new(options.sampling.seed).stream("write").index(row.sample).step(place as u64);
            let mut uniform = [0.0];
            key.uniform(0, &mut uniform);
            let token = options.sampling.choose(&mut logits, &row.tokens, uniform[0])?;
            row.tokens.push(token);
            if options.end == Some(token) {
                row.ended = true;
            }
            if !row.ended {
                take(number, token)?;
            }
        }
    }
    Ok(rows.into_iter().map(|row| row.continuation(options.end)).collect())
}

/// Checks that a prompt can be continued.
fn check_prompt(model: &dyn LanguageModel, tokens: &[u32]) -> Result<()> {
    let (length, context) = (tokens.len(), model.context());
    let problem = match length {
        0 => "a prompt without a token".to_owned(),
        _ if length >= context => {
            format!("a prompt of {length} tokens; the context is {context}, with at least one new token")
        }
        _ => return Ok(()),
    };
    Err(TensorError::Shape { op: "generate", problem })
}

impl Row {
    fn new(prompt: &Prompt) -> Self {
        Self {
            tokens: prompt.tokens.clone(),
            prompt: prompt.tokens.len(),
            sample: prompt.sample,
            ended: false,
        }
    }

    /// The new tokens, up to the end of the text.
    fn continuation(mut self, end: Option<u32>) -> Vec<u32> {
        let mut new = self.tokens.split_off(self.prompt);
        if let Some(at) = end.and_then(|end| new.iter().position(|token| *token == end)) {
            new.truncate(at);
        }
        new
    }
}

impl Batch<'_> {
    /// Computes the logits of the next token of each text.
    fn next_logits(&mut self, texts: &[&[u32]], cached: bool) -> Result<Vec<Vec<f32>>> {
        self.begins.resize(texts.len(), 0);
        let context = self.model.context();
        for (text, begin) in texts.iter().zip(&mut self.begins) {
            if text.len() - *begin > context {
                // The last half is read again, and the other texts with it.
                *begin = text.len() - (context / 2).max(1);
                self.cache = None;
            }
        }
        if let Some(cache) = &self.cache {
            let newest: Vec<u32> = texts.iter().filter_map(|text| text.last().copied()).collect();
            let first = cache.length();
            return self.run(&newest, texts.len(), first);
        }
        let windows: Vec<&[u32]> =
            texts.iter().zip(&self.begins).map(|(text, begin)| &text[*begin..]).collect();
        let length = windows.iter().map(|text| text.len()).max().unwrap_or(0);
        self.padding = windows.iter().map(|text| length - text.len()).collect();
        self.cache = cached.then(|| self.model.empty_cache());
        let padded: Vec<u32> = windows
            .iter()
            .flat_map(|text| std::iter::repeat_n(0, length - text.len()).chain(text.iter().copied()))
            .collect();
        self.run(&padded, texts.len(), 0)
    }

    /// Runs the model on the columns from `first` on. Returns the logits behind the last.
    fn run(&mut self, tokens: &[u32], rows: usize, first: usize) -> Result<Vec<Vec<f32>>> {
        let length = tokens.len() / rows.max(1);
        let input = TokenInput::padded_left(tokens, &self.padding, first)?;
        let hidden = match &mut self.cache {
            Some(cache) => self.model.continue_hidden(self.tape, &input, cache)?,
            None => self.model.hidden(self.tape, &input)?,
        };
        last_logits(self.model, self.tape, &hidden, length)
    }
}

/// Returns the logits behind the last of `length` columns, row by row.
fn last_logits(
    model: &dyn LanguageModel,
    tape: &Tape,
    hidden: &Value,
    length: usize,
) -> Result<Vec<Vec<f32>>> {
    let last = ops::narrow(tape, hidden, 1, length - 1, 1)?;
    let logits = model.logits(tape, &last)?.array()?.to_host()?;
    Ok(logits.to_dtype(candle_core::DType::F32)?.flatten_to(1)?.to_vec2()?)
}
