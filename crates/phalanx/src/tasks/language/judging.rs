//! The measures of predicted tokens: their cross-entropy, and the share of those that are most probable.

use phalanx_models::LanguageModel;
use phalanx_tensor::loss::{CrossEntropyOptions, JudgedRows, LossDivisor, RowTargets, judge_rows};
use phalanx_tensor::{Value, ops};
use phalanx_trainer::engine::{StepInput, TrainError};

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
    let JudgedRows { loss, right } = judge_rows(step.tape, logits, &targets, options)?;
    Ok([loss, right])
}
