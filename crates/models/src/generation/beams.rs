//! Beam search.

use phalanx_tensor::{Result, Tape};

use super::{check_prompt, last_logits};
use crate::language_model::LanguageModel;
use crate::token_input::TokenInput;

/// The settings of [`beam_search`].
#[derive(Debug, Clone, Copy)]
pub struct BeamOptions {
    /// The number of texts that are kept at each step.
    pub width: usize,
    /// The exponent of the length that the logarithm of the probability is divided by; 0 = none. The end of the text counts.
    pub length_penalty: f64,
    /// The longest continuation, in tokens.
    pub max_tokens: usize,
    /// The token that ends a text.
    pub end: Option<u32>,
    /// Tokens from this number on are never chosen.
    pub vocab: usize,
}

/// A continuation of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Beam {
    /// The tokens, without the end of the text.
    pub tokens: Vec<u32>,
    /// The logarithm of the probability, with that of the end.
    pub log_probability: f64,
    /// [`Beam::log_probability`] divided by a power of the length.
    pub score: f64,
}

/// Returns the most probable continuations of a prompt that the search finds, the best first. It ends when no live text can
/// become better than the worst finished one of `width`.
///
/// # Errors
/// If the prompt has no token or is as long as the context, and errors of the model.
pub fn beam_search(
    model: &dyn LanguageModel,
    tape: &Tape,
    prompt: &[u32],
    options: &BeamOptions,
) -> Result<Vec<Beam>> {
    check_prompt(model, prompt)?;
    let width = options.width.max(1);
    let most = options.max_tokens.min(model.context() - prompt.len());
    let mut cache = model.empty_cache();
    let mut live = vec![Beam { tokens: Vec::new(), log_probability: 0.0, score: 0.0 }];
    let mut finished: Vec<Beam> = Vec::new();
    let mut input = prompt.to_vec();
    for place in 0..most {
        let length = input.len() / live.len();
        let tokens = TokenInput::padded_left(&input, &vec![0; live.len()], cache.length())?;
        let hidden = model.continue_hidden(tape, &tokens, &mut cache)?;
        let logits = last_logits(model, tape, &hidden, length)?;
        let candidates = best_candidates(&live, &logits, 2 * width, options.vocab);
        let mut next = Vec::new();
        for Candidate { parent, token, log_probability } in candidates {
            let score = normalised(log_probability, place + 1, options.length_penalty);
            let mut tokens = live[parent].tokens.clone();
            if options.end == Some(token) {
                finished.push(Beam { tokens, log_probability, score });
            } else if next.len() < width {
                tokens.push(token);
                next.push((parent, Beam { tokens, log_probability, score }));
            }
        }
        finished.sort_by(|one, other| other.score.total_cmp(&one.score));
        finished.truncate(width);
        let parents: Vec<usize> = next.iter().map(|(parent, _)| *parent).collect();
        live = next.into_iter().map(|(_, beam)| beam).collect();
        if live.is_empty() || has_won(&finished, &live, width, most, options.length_penalty) {
            break;
        }
        cache.select_rows(tape, &parents)?;
        input = live.iter().filter_map(|beam| beam.tokens.last().copied()).collect();
    }
    // Texts without an end count as they are.
    finished.extend(live);
    finished.sort_by(|one, other| other.score.total_cmp(&one.score));
    finished.truncate(width);
    Ok(finished)
}

/// A live text with one more token.
struct Candidate {
    parent: usize,
    token: u32,
    log_probability: f64,
}

/// The most probable continuations of live texts by a token.
fn best_candidates(live: &[Beam], logits: &[Vec<f32>], count: usize, vocab: usize) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (parent, (beam, logits)) in live.iter().zip(logits).enumerate() {
        let logits = &logits[..logits.len().min(vocab.max(1))];
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        let normaliser = f64::from(highest) + sum.ln();
        candidates.extend(logits.iter().zip(0_u32..).map(|(logit, token)| {
            let log_probability = beam.log_probability + f64::from(*logit) - normaliser;
            Candidate { parent, token, log_probability }
        }));
    }
    let by_probability = |one: &Candidate, other: &Candidate| {
        let by_number = || (one.parent, one.token).cmp(&(other.parent, other.token));
        other.log_probability.total_cmp(&one.log_probability).then_with(by_number)
    };
    if candidates.len() > count {
        candidates.select_nth_unstable_by(count - 1, by_probability);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(by_probability);
    candidates
}

fn normalised(log_probability: f64, length: usize, penalty: f64) -> f64 {
    log_probability / (length as f64).powf(penalty)
}

/// True if no live text can become better than the finished ones.
fn has_won(finished: &[Beam], live: &[Beam], width: usize, most: usize, penalty: f64) -> bool {
    let (Some(worst), true) = (finished.last(), finished.len() >= width) else { return false };
    let best = live.iter().map(|beam| beam.log_probability).fold(f64::NEG_INFINITY, f64::max);
    let now = live.first().map_or(1, |beam| beam.tokens.len());
    // A probability can only fall; a power of the length can help until the longest text.
    let reachable = normalised(best, now + 1, penalty).max(normalised(best, most.max(1), penalty));
    worst.score >= reachable
}
