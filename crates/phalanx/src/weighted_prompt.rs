//! Prompts whose parts have weights: "a (red:1.4) star".

use candle_core::{DType, Device, Tensor};
use phalanx_data::ClipTokenizer;
use phalanx_tensor::{Result, Tape, Value, ops};

/// The largest weight; other numbers in parentheses are text.
const LARGEST: f64 = 10.0;

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    text: String,
    weight: f64,
}

/// A prompt. Parts `(text:weight)`, with a weight from 0 to 10, count more or less than the others, whose weight is 1. Other
/// parentheses are text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WeightedPrompt {
    parts: Vec<Part>,
}

impl WeightedPrompt {
    /// Finds the parts of a prompt.
    pub(crate) fn new(prompt: &str) -> Self {
        let mut parts = Vec::new();
        let (mut plain, mut rest) = (String::new(), prompt);
        while let Some(at) = rest.find('(') {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            match weighted_part(from) {
                Some((part, behind)) => {
                    parts.push(Part { text: std::mem::take(&mut plain), weight: 1.0 });
                    parts.push(part);
                    rest = behind;
                }
                None => {
                    plain.push('(');
                    rest = &from[1..];
                }
            }
        }
        plain.push_str(rest);
        parts.push(Part { text: plain, weight: 1.0 });
        parts.retain(|part| !part.text.trim().is_empty());
        Self { parts }
    }

    /// Returns the prompt without weights. Parts are words of their own.
    pub(crate) fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|part| part.text.trim()).collect();
        texts.join(" ")
    }

    /// Returns true if a part has a weight other than 1.
    pub(crate) fn is_weighted(&self) -> bool {
        self.parts.iter().any(|part| part.weight != 1.0)
    }

    /// Returns the weight of each of the `context` tokens of the encoded text. Marks and padding have 1.
    fn weights(&self, tokenizer: &ClipTokenizer, context: usize) -> Vec<f64> {
        let of_part = |part: &Part| vec![part.weight; tokenizer.tokenize(&part.text).len()];
        let tokens = self.parts.iter().flat_map(of_part).take(context.saturating_sub(2));
        let mut weights: Vec<f64> = std::iter::once(1.0).chain(tokens).collect();
        weights.resize(context, 1.0);
        weights
    }
}

/// Splits a part in parentheses off the front of a text.
fn weighted_part(text: &str) -> Option<(Part, &str)> {
    let (inside, behind) = text.strip_prefix('(')?.split_once(')')?;
    let (text, weight) = inside.rsplit_once(':')?;
    let weight: f64 = weight.trim().parse().ok()?;
    let is_part = !text.contains('(') && (0.0..=LARGEST).contains(&weight);
    is_part.then(|| (Part { text: text.to_owned(), weight }, behind))
}

/// Moves features of the tokens of prompts, [N, T, C], from or to those of the empty text, [1, T, C]: a weight w gives
/// empty + w·(token − empty).
///
/// # Errors
/// If the shapes differ.
pub(crate) fn weigh_tokens(
    tape: &Tape,
    tokens: &Value,
    empty: &Value,
    prompts: &[WeightedPrompt],
    tokenizer: &ClipTokenizer,
) -> Result<Value> {
    let context = tokens.dims().get(1).copied().unwrap_or(0);
    let weights: Vec<f64> = prompts.iter().flat_map(|prompt| prompt.weights(tokenizer, context)).collect();
    let weights = Tensor::from_vec(weights, (prompts.len(), context, 1), &Device::Cpu)?;
    let weights = Value::constant(tape.backend().from_host(&weights.to_dtype(DType::F32)?)?);
    let weights = Value::constant(tape.backend().cast(&weights.array()?, tokens.dtype()?)?);
    let empty = ops::broadcast_as(tape, empty, tokens.shape().clone())?;
    let change = ops::broadcast_mul(tape, &ops::sub(tape, tokens, &empty)?, &weights)?;
    ops::add(tape, &empty, &change)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_tensor::{Context, Session};

    use super::*;

    #[test]
    fn parts_with_a_weight_are_told_from_other_parentheses() {
        for (prompt, text, weights) in [
            ("a red star", "a red star", vec![1.0]),
            ("a (red:1.4) star", "a red star", vec![1.0, 1.4, 1.0]),
            ("(a cat:0.5)(a dog: 2)", "a cat a dog", vec![0.5, 2.0]),
            ("a clock (at 12:30)", "a clock (at 12:30)", vec![1.0]),
            ("f(x) = (y:z) (open:1.2", "f(x) = (y:z) (open:1.2", vec![1.0]),
            ("((red:1.2))", "( red )", vec![1.0, 1.2, 1.0]),
            ("(:2) (red:-1)", "(red:-1)", vec![1.0]),
            ("", "", vec![]),
        ] {
            let parsed = WeightedPrompt::new(prompt);
            assert_eq!(parsed.text(), text, "{prompt}");
            assert_eq!(parsed.parts.iter().map(|part| part.weight).collect::<Vec<_>>(), weights, "{prompt}");
            assert_eq!(parsed.is_weighted(), weights.iter().any(|weight| *weight != 1.0), "{prompt}");
        }
    }

    #[test]
    fn tokens_of_a_part_move_from_the_empty_text() {
        let tokenizer = ClipTokenizer::with_vocab(4096).expect("in range");
        let prompts = ["a (star:2) here", "a (star:0)"].map(WeightedPrompt::new);
        let before = tokenizer.tokenize("a").len();
        let of_star = tokenizer.tokenize("star").len();
        let context = 12;
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let constant = |value: f32, dims: (usize, usize, usize)| {
            Value::constant(Tensor::full(value, dims, &Device::Cpu).expect("small"))
        };
        let (tokens, empty) = (constant(3.0, (2, context, 1)), constant(1.0, (1, context, 1)));
        let moved = weigh_tokens(&tape, &tokens, &empty, &prompts, &tokenizer).expect("fits");
        let moved =
            moved.to_host().expect("here").flatten_all().expect("flat").to_vec1::<f32>().expect("f32");
        let of_part = 1 + before..1 + before + of_star;
        for (at, value) in moved.iter().enumerate() {
            let expected = match (of_part.contains(&(at % context)), at < context) {
                (false, _) => 3.0,
                (true, true) => 5.0,
                (true, false) => 1.0,
            };
            assert_eq!(*value, expected, "token {at}");
        }
    }
}
