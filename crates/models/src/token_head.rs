//! The product with a vocabulary: the head of every model of tokens.

use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets, linear_cross_entropy};
use phalanx_tensor::ops::{LinearWeight, WeightLayout};
use phalanx_tensor::{Buffer, Param, Result, Tape, Value, ops};

/// The bias of the logits.
#[derive(Debug, Clone)]
pub(crate) enum HeadBias {
    Absent,
    /// Part of published files, and not trained.
    Fixed(Buffer),
    Trained(Param),
}

/// A weight [vocab, width] with its bias, and the block that they lie in: that of the table of tokens if the weight is the
/// table.
#[derive(Debug, Clone)]
pub(crate) struct TokenHead {
    pub(crate) block: String,
    pub(crate) weight: Param,
    pub(crate) bias: HeadBias,
}

impl TokenHead {
    /// Computes the logits of states [.., width].
    pub(crate) fn logits(&self, tape: &Tape, states: &Value) -> Result<Value> {
        let logits = self.run(tape, states, |states, weight| ops::linear_by(tape, states, weight))?;
        ops::gathered(tape, &logits, logits.dims().len() - 1, self.weight.whole_shape().dims()[0])
    }

    /// Computes the cross-entropy of the logits with targets, a row for each state, without keeping logits.
    pub(crate) fn loss(
        &self,
        tape: &Tape,
        states: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value> {
        self.run(tape, states, |states, weight| linear_cross_entropy(tape, states, weight, targets, options))
    }

    /// Runs a function with the weight and the bias, in their block.
    fn run(
        &self,
        tape: &Tape,
        states: &Value,
        run: impl FnOnce(&Value, LinearWeight<'_>) -> Result<Value>,
    ) -> Result<Value> {
        tape.run_as(&self.block, states, |states| {
            let weight = tape.param(&self.weight)?;
            let bias = match &self.bias {
                HeadBias::Absent => None,
                HeadBias::Fixed(buffer) => {
                    let all = self.weight.whole_shape().dims()[0];
                    let bias = ops::reshape(tape, &Value::constant(buffer.array()), all)?;
                    let own = self.weight.portion().and_then(|portion| portion.kept().first().cloned());
                    let own = own.unwrap_or(0..all);
                    Some(ops::narrow(tape, &bias, 0, own.start, own.len())?)
                }
                HeadBias::Trained(param) => Some(tape.param(param)?),
            };
            run(
                states,
                LinearWeight { weight: &weight, layout: WeightLayout::OutputsFirst, bias: bias.as_ref() },
            )
        })
    }
}
