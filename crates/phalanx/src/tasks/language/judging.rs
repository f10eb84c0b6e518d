//! The measures of predicted tokens: their cross-entropy, and the share of those that are most probable.

use phalanx_models::LanguageModel;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets, cross_entropy_of_rows};
use phalanx_tensor::{Value, ops};
use phalanx_trainer::engine::{StepInput, TrainError, number};

/// The most logits that are in memory at once.
const BLOCK: usize = 24 << 20;

/// The tokens that rows of states are to predict.
pub(super) struct PredictedTokens<'a> {
    pub(super) labels: &'a [u32],
    /// The weight of each row; 0 for padding.
    pub(super) weights: &'a [f32],
}

/// Adds up −log p of the tokens, and the weights of those that are the most probable ones. States are [.., C]; logits are in memory for
/// a block of rows at a time.
pub(super) fn judge<M: LanguageModel>(
    model: &M,
    step: &StepInput<'_>,
    states: &Value,
    tokens: &PredictedTokens<'_>,
    options: CrossEntropyOptions,
) -> Result<[f64; 2], TrainError> {
    let width = states.dims().last().copied().unwrap_or_default();
    let rows = tokens.labels.len();
    let states = ops::reshape(step.tape, states, (rows, width))?;
    let block = (BLOCK / model.vocab().max(1)).clamp(1, rows.max(1));
    let mut sums = [0.0; 2];
    for start in (0..rows).step_by(block) {
        let count = block.min(rows - start);
        let part = ops::narrow(step.tape, &states, 0, start, count)?;
        let logits = model.logits(step.tape, &part)?;
        let part = PredictedTokens {
            labels: &tokens.labels[start..start + count],
            weights: &tokens.weights[start..start + count],
        };
        let [loss, right] = judge_logits(step, &logits, &part, options)?;
        sums[0] += loss;
        sums[1] += right;
    }
    Ok(sums)
}

/// Adds up −log p of the tokens of rows of logits, and the weights of those that are the most probable ones.
pub(super) fn judge_logits(
    step: &StepInput<'_>,
    logits: &Value,
    tokens: &PredictedTokens<'_>,
    options: CrossEntropyOptions,
) -> Result<[f64; 2], TrainError> {
    let PredictedTokens { labels, weights } = *tokens;
    let over = LossDivisor::Sum(step.sum);
    let targets = RowTargets { labels: labels.into(), weights: Some(weights), over };
    let loss = number(&cross_entropy_of_rows(step.tape, logits, &targets, options)?)?;
    let width = logits.dims().last().copied().unwrap_or_default();
    let all = logits.to_host()?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let classes = options.classes.unwrap_or(width);
    let rows = all.chunks_exact(width.max(1)).zip(labels).zip(weights);
    let right =
        rows.filter(|((logits, label), weight)| **weight > 0.0 && is_best(&logits[..classes], **label));
    Ok([loss, right.map(|(_, weight)| f64::from(*weight)).sum()])
}

/// True if a number is the largest, and the first of equal ones.
fn is_best(numbers: &[f32], index: u32) -> bool {
    let Some((before, [own, after @ ..])) = numbers.split_at_checked(index as usize) else { return false };
    before.iter().all(|other| other < own) && after.iter().all(|other| other <= own)
}

#[cfg(test)]
mod tests {
    use super::is_best;

    #[test]
    fn the_first_of_the_largest_is_best() {
        let numbers = [1.0, 3.0, 2.0, 3.0];
        assert_eq!([0, 1, 2, 3, 4].map(|index| is_best(&numbers, index)), [false, true, false, false, false]);
        assert!(!is_best(&[f32::NAN, 1.0], 0) && !is_best(&[f32::NAN, 1.0], 1));
    }
}
