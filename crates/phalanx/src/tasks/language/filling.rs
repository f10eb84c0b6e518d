//! Texts with masked tokens, filled in by BERT.

use candle_core::{DType, Device, Tensor};
use phalanx_models::{BertMasked, EncoderInput};
use phalanx_tensor::{Tape, Value};
use phalanx_trainer::engine::{TrainError, Writing, WrittenText};

use super::encoder::EncoderVocabulary;

/// A token that may stand at a masked place, and the logarithm of its probability.
struct Candidate {
    token: u32,
    score: f64,
}

/// Fills in the masked tokens of each prompt: sample s has the token of rank s + 1 at each place.
pub(super) fn fill(
    model: &BertMasked,
    vocabulary: &EncoderVocabulary,
    context: usize,
    tape: &Tape,
    writing: &Writing,
) -> Result<Vec<WrittenText>, TrainError> {
    let mut all = Vec::new();
    for (prompt, text) in writing.prompts.iter().enumerate() {
        let (tokens, places) = encode(vocabulary, text, context)?;
        let candidates = candidates(model, vocabulary, tape, (&tokens, &places), writing.samples)?;
        for sample in 0..writing.samples {
            let mut filled = tokens.clone();
            let mut score = 0.0;
            for (place, of_place) in places.iter().zip(&candidates) {
                let Some(candidate) = of_place.get(sample) else { continue };
                filled[*place as usize] = candidate.token;
                score += candidate.score;
            }
            let text = vocabulary.tokenizer.decode(&filled)?;
            all.push(WrittenText { prompt, sample, text, tokens: places.len(), score: Some(score) });
        }
    }
    Ok(all)
}

/// Encodes a text with masks. Returns its tokens, with those around it, and the places of the masks.
fn encode(
    vocabulary: &EncoderVocabulary,
    text: &str,
    context: usize,
) -> Result<(Vec<u32>, Vec<u32>), TrainError> {
    let EncoderVocabulary { tokenizer, special, .. } = vocabulary;
    let mask = tokenizer.piece(special.mask).unwrap_or_default();
    let mut tokens = vec![special.start];
    let mut places = Vec::new();
    for (number, part) in text.split(mask.as_str()).enumerate() {
        if number > 0 {
            places.push(tokens.len() as u32);
            tokens.push(special.mask);
        }
        // Spaces around a mask belong to no token where tokens are words.
        tokens.extend(tokenizer.encode(part.trim_matches(' '))?);
    }
    tokens.push(special.end);
    if places.is_empty() {
        return Err(TrainError::Setup(format!(
            "the text {text:?} has no {mask}, which this model would fill in"
        )));
    }
    if tokens.len() > context {
        let length = tokens.len();
        return Err(TrainError::Setup(format!(
            "the text {:?} has {length} tokens with those around it, and the model's context is {context}; shorten it",
            text.chars().take(40).collect::<String>()
        )));
    }
    Ok((tokens, places))
}

/// The most probable tokens at each place, at most `most` of them.
fn candidates(
    model: &BertMasked,
    vocabulary: &EncoderVocabulary,
    tape: &Tape,
    (tokens, places): (&[u32], &[u32]),
    most: usize,
) -> Result<Vec<Vec<Candidate>>, TrainError> {
    let length = tokens.len();
    let row = |values: Vec<u32>| Tensor::from_vec(values, (1, length), &Device::Cpu);
    let input = EncoderInput {
        tokens: Value::constant(row(tokens.to_vec())?),
        types: Value::constant(row(vec![0; length])?),
        lengths: Value::constant(Tensor::new(&[length as u32], &Device::Cpu)?),
    };
    let states = model.states_at(tape, &input, places)?;
    let logits = model.logits(tape, &states)?.to_host()?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let special = vocabulary.tokenizer.are_special();
    let of_place = |logits: Vec<f64>| {
        let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = highest + logits.iter().map(|logit| (logit - highest).exp()).sum::<f64>().ln();
        let plain = logits.iter().zip(&special).enumerate().filter(|(_, (_, special))| !**special);
        let mut all: Vec<Candidate> =
            plain.map(|(token, (logit, _))| Candidate { token: token as u32, score: logit - sum }).collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all.truncate(most);
        all
    };
    Ok(logits.into_iter().map(of_place).collect())
}
