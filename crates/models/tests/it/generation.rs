//! Continuations: with and without a cache, alone and in a batch, by sampling and by beams.

use std::sync::Arc;

use phalanx_models::{
    BeamOptions, GenerationOptions, LanguageModel, Prompt, Sampling, TokenInput, beam_search, generate,
};
use phalanx_tensor::{Context, Session, Tape};

use crate::language::{logits, models, row};

const VOCAB: usize = 11;

fn tape() -> Tape {
    Tape::forward_only(Session::evaluation(Arc::new(Context::new(2))))
}

fn prompt(tokens: &[u32], sample: u64) -> Prompt {
    Prompt { tokens: tokens.to_vec(), sample }
}

fn written(model: &dyn LanguageModel, prompts: &[Prompt], options: &GenerationOptions) -> Vec<Vec<u32>> {
    let mut taken = vec![Vec::new(); prompts.len()];
    let all = generate(model, &tape(), prompts, options, &mut |number, token| {
        taken[number].push(token);
        Ok(())
    });
    let all = all.expect("short prompts");
    assert_eq!(all, taken, "tokens arrive as they are chosen");
    all
}

fn options(max_tokens: usize) -> GenerationOptions {
    let sampling = Sampling { temperature: 0.9, seed: 3, ..Sampling::default() };
    GenerationOptions { sampling, max_tokens, end: None, vocab: VOCAB, cached: true, stops_early: true }
}

#[test]
fn a_cache_gives_the_logits_of_the_whole_text() {
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    for model in models() {
        let whole = logits(&*model, &TokenInput::new(&row(&tokens)).expect("a row"));
        let mut cache = model.empty_cache();
        let mut parts = Vec::new();
        for (first, length) in [(0, 3), (3, 1), (4, 4)] {
            let input = TokenInput::padded_left(&tokens[first..first + length], &[0], first).expect("a row");
            let tape = tape();
            let hidden = model.continue_hidden(&tape, &input, &mut cache).expect("fits");
            let part = model.logits(&tape, &hidden).and_then(|logits| logits.tensor()).expect("numbers");
            parts.extend(part.squeeze(0).and_then(|rows| rows.to_vec2::<f32>()).expect("numbers"));
            assert_eq!(cache.length(), first + length);
        }
        let pairs = parts.iter().flatten().zip(whole.iter().flatten());
        let far = pairs.fold(0.0_f32, |most, (part, whole)| most.max((part - whole).abs()));
        assert!(parts.len() == 8 && far < 1e-5, "{far}: {model:?}");
        let input = TokenInput::padded_left(&[1; 5], &[0], 8).expect("a row");
        let error = model.continue_hidden(&tape(), &input, &mut cache).expect_err("13 tokens").to_string();
        assert!(error.contains("13 tokens; the context is 12"), "{error}");
    }
}

#[test]
fn texts_are_the_same_with_and_without_a_cache_alone_and_in_a_batch() {
    // The third grows beyond the context of 12.
    let prompts = [prompt(&[1, 2, 3], 0), prompt(&[4], 1), prompt(&[5, 6, 7, 8, 9, 10, 1, 2, 3], 0)];
    for model in models() {
        let together = written(&*model, &prompts, &options(3));
        let without = written(&*model, &prompts, &GenerationOptions { cached: false, ..options(3) });
        assert_eq!(together, without);
        for (prompt, expected) in prompts.iter().zip(&together) {
            let alone = written(&*model, std::slice::from_ref(prompt), &options(3));
            assert_eq!(alone[0], *expected);
        }
        let other = GenerationOptions { sampling: Sampling { seed: 4, ..options(3).sampling }, ..options(3) };
        assert_ne!(written(&*model, &prompts, &other), together, "another seed");
        let long = written(&*model, &prompts[2..], &options(30));
        assert_eq!(long[0].len(), 30, "the context is no end");
        let anew = written(&*model, &prompts[2..], &GenerationOptions { cached: false, ..options(30) });
        assert_eq!(anew, long);
        assert_eq!(
            written(&*model, &prompts, &options(30))[2],
            long[0],
            "texts become full at their own times"
        );
    }
}

#[test]
fn a_text_ends_at_its_end_and_not_beyond_the_tokenizer() {
    for model in models() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let all = GenerationOptions { sampling: greedy, ..options(8) };
        let free = written(&*model, &[prompt(&[1, 2], 0)], &all);
        let end = free[0][3];
        let ended = written(&*model, &[prompt(&[1, 2], 0)], &GenerationOptions { end: Some(end), ..all });
        let first = free[0].iter().position(|token| *token == end).expect("is there");
        assert_eq!(ended[0], free[0][..first]);
        let few = written(&*model, &[prompt(&[1, 2], 0)], &GenerationOptions { vocab: 2, ..options(8) });
        assert!(few[0].iter().all(|token| *token < 2));
    }
}

/// The logarithm of the probability of a continuation.
fn log_probability(model: &dyn LanguageModel, prompt: &[u32], new: &[u32]) -> f64 {
    let text = [prompt, new].concat();
    let logits = logits(model, &TokenInput::new(&row(&text)).expect("a row"));
    let mut total = 0.0;
    for (at, token) in new.iter().enumerate() {
        let row = &logits[prompt.len() + at - 1];
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        total += f64::from(row[*token as usize]) - sum.ln();
    }
    total
}

#[test]
fn wide_beams_find_the_most_probable_text() {
    let prompt = [1, 2];
    for model in models() {
        // With as many beams as there are texts of two tokens the search is exhaustive.
        let options =
            BeamOptions { width: VOCAB * VOCAB, length_penalty: 0.0, max_tokens: 3, end: None, vocab: VOCAB };
        let beams = beam_search(&*model, &tape(), &prompt, &options).expect("short");
        let vocab = 0..VOCAB as u32;
        let mut best = (f64::NEG_INFINITY, Vec::new());
        for a in vocab.clone() {
            for b in vocab.clone() {
                for c in vocab.clone() {
                    let probability = log_probability(&*model, &prompt, &[a, b, c]);
                    if probability > best.0 {
                        best = (probability, vec![a, b, c]);
                    }
                }
            }
        }
        assert_eq!(beams[0].tokens, best.1);
        assert!((beams[0].log_probability - best.0).abs() < 1e-4);
        let greedy = GenerationOptions {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: 3,
            end: None,
            vocab: VOCAB,
            cached: true,
            stops_early: true,
        };
        let single =
            beam_search(&*model, &tape(), &prompt, &BeamOptions { width: 1, ..options }).expect("short");
        assert_eq!(single[0].tokens, written(&*model, &[self::prompt(&prompt, 0)], &greedy)[0]);
    }
}

#[test]
fn ends_count_and_longer_texts_are_preferred_by_the_penalty() {
    for model in models() {
        let options =
            BeamOptions { width: 4, length_penalty: 0.0, max_tokens: 6, end: Some(7), vocab: VOCAB };
        let short = beam_search(&*model, &tape(), &[1, 2], &options).expect("short");
        for beam in short.iter().filter(|beam| beam.tokens.len() < 6) {
            let with_end = [&beam.tokens[..], &[7]].concat();
            let expected = log_probability(&*model, &[1, 2], &with_end);
            assert!((beam.log_probability - expected).abs() < 1e-4);
        }
        assert!(short.is_sorted_by(|one, other| one.score >= other.score));
        let long = beam_search(&*model, &tape(), &[1, 2], &BeamOptions { length_penalty: 2.0, ..options })
            .expect("short");
        assert!(long[0].tokens.len() >= short[0].tokens.len());
    }
}

#[test]
fn prompts_that_cannot_be_continued_are_named() {
    for model in models() {
        for (tokens, words) in [(&[][..], "without a token"), (&[1; 12], "12 tokens; the context is 12")] {
            let refused = generate(&*model, &tape(), &[prompt(tokens, 0)], &options(1), &mut |_, _| Ok(()));
            let error = refused.expect_err("no prompt").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
