//! Words of captions that are read in images, after SuperClass (Huang et al. 2024).
//!
//! The contrastive loss tells an image's caption from the others of a batch, for which a few of its words suffice:
//! where colours and places differ, shapes need not be known. Here each word of a caption counts by itself.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::ops::{LinearWeight, WeightLayout};
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

use super::ClipTextConfig;
use crate::run_block::run_block;

/// A linear layer from features of images to logits of tokens.
#[derive(Debug, Clone)]
pub(super) struct WordHead {
    block: Arc<dyn Block>,
}

#[derive(Debug)]
struct Layer {
    name: String,
    weight: Param,
    bias: Param,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let (weight, bias) = (tape.param(&self.weight)?, tape.param(&self.bias)?);
        let weight = LinearWeight { weight: &weight, layout: WeightLayout::OutputsFirst, bias: Some(&bias) };
        Ok(vec![ops::linear_by(tape, &inputs[0], weight)?])
    }
}

impl WordHead {
    /// Registers `weight` [vocab, embed] and `bias` `[vocab]`.
    pub(super) fn new(scope: &Scope, config: &ClipTextConfig) -> Result<Self> {
        let scope = scope.block();
        let std = (config.embed as f64).powf(-0.5);
        let weight = scope.param("weight", (config.vocab, config.embed), Init::Normal { mean: 0.0, std })?;
        let bias = scope.param("bias", config.vocab, Init::ZEROS)?;
        Ok(Self { block: Arc::new(Layer { name: scope.block_name().to_owned(), weight, bias }) })
    }

    /// Computes logits [N, vocab] of features [N, embed].
    pub(super) fn logits(&self, tape: &Tape, features: &Value) -> Result<Value> {
        run_block(tape, &self.block, std::slice::from_ref(features))
    }
}

/// Computes the mean over captions of the mean over their words of −log softmax(logits) at the word. Rows of `ids`,
/// [N, T], are start, tokens, end, then zeros; start and end are not words, except the end of a caption without words.
///
/// # Errors
/// If the shapes do not match, or a token is not in the vocabulary.
pub(super) fn words_loss(tape: &Tape, logits: &Value, ids: &Tensor, over: LossDivisor) -> Result<Value> {
    const OP: &str = "words_loss";
    let rows = ids.to_dtype(DType::U32)?.to_vec2::<u32>()?;
    let (&[samples, vocab], true) = (logits.dims(), logits.dims().first() == Some(&rows.len())) else {
        let problem = format!("logits {:?} for {} captions; expected [N, vocab]", logits.shape(), rows.len());
        return Err(TensorError::Shape { op: OP, problem });
    };
    // log Σ e^logit is the loss of any label plus its logit, so the first word stands for all, and the difference of
    // logits between it and all words is added.
    let (mut labels, mut rest) = (Vec::with_capacity(samples), vec![0.0_f32; samples * vocab]);
    for (row, rest) in rows.iter().zip(rest.chunks_exact_mut(vocab)) {
        let words = words(row);
        if let Some(id) = words.iter().find(|id| **id as usize >= vocab) {
            let problem = format!("token {id} is not in a vocabulary of {vocab}");
            return Err(TensorError::Shape { op: OP, problem });
        }
        let first = words.first().copied().unwrap_or(0);
        rest[first as usize] += 1.0;
        let share = 1.0 / words.len().max(1) as f32;
        words.iter().for_each(|id| rest[*id as usize] -= share);
        labels.push(first);
    }
    let array = logits.array()?;
    let rest = Tensor::from_vec(rest, (samples, vocab), &Device::Cpu)?.to_dtype(array.dtype())?;
    let rest = Value::constant(array.backend(tape.context()).from_host(&rest)?);
    let of_first = loss::cross_entropy(tape, logits, &labels[..], 0.0, over)?;
    let difference = ops::sum(tape, &ops::mul(tape, logits, &rest)?)?;
    ops::add(tape, &of_first, &ops::scale(tape, &difference, 1.0 / over.divisor(samples))?)
}

/// Returns the tokens between the start and the end of a caption, or the end if there are none.
fn words(row: &[u32]) -> &[u32] {
    let last = row.iter().max().copied().unwrap_or(0);
    let end = row.iter().position(|id| *id == last).unwrap_or(0);
    if end > 1 { &row[1..end] } else { &row[end..(end + 1).min(row.len())] }
}
