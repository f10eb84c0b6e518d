//! Attention.

use phalanx_tensor::backend::{
    Array, Attention, AttentionBackward, AttentionGradients, AttentionInputs, AttentionMask,
    AttentionOperands, AttentionOutput,
};

use super::{Checking, Result};

const OP: &str = "attention";

/// The arrays of the inputs, unwrapped.
struct Opened {
    operands: Vec<Array>,
    mask: AttentionMask,
}

impl Opened {
    fn operands(&self) -> AttentionOperands<'_> {
        match &self.operands[..] {
            [q, k, v] => AttentionOperands::Apart([q, k, v]),
            all => AttentionOperands::Joined(&all[0]),
        }
    }
}

impl Checking {
    fn open_inputs(&self, of: &AttentionInputs<'_>) -> Result<Opened> {
        let operands = match of.operands {
            AttentionOperands::Joined(all) => vec![self.open(OP, all)?],
            AttentionOperands::Apart(all) => {
                all.into_iter().map(|array| self.open(OP, array)).collect::<Result<_>>()?
            }
        };
        let AttentionMask { causal, window, ref lengths, ref starts } = *of.mask;
        let (lengths, starts) = (self.open_if(OP, lengths.as_ref())?, self.open_if(OP, starts.as_ref())?);
        Ok(Opened { operands, mask: AttentionMask { causal, window, lengths, starts } })
    }
}

impl Attention for Checking {
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let opened = self.open_inputs(&of)?;
        let inputs = AttentionInputs { operands: opened.operands(), mask: &opened.mask, ..of };
        let AttentionOutput { output, saved } = self.cpu().attention(inputs)?;
        Ok(AttentionOutput { output: self.hide(&output)?, saved: self.hide(&saved)? })
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        let opened = self.open_inputs(&of.inputs)?;
        let inputs = AttentionInputs { operands: opened.operands(), mask: &opened.mask, ..of.inputs };
        let (output, saved, grad) =
            (&self.open(OP, of.output)?, &self.open(OP, of.saved)?, &self.open(OP, of.grad)?);
        let of = AttentionBackward { inputs, output, saved, grad, ..of };
        Ok(match self.cpu().attention_backward(of)? {
            AttentionGradients::Joined(grad) => AttentionGradients::Joined(self.hide(&grad)?),
            AttentionGradients::Apart([q, k, v]) => {
                let hide = |array: Option<Array>| array.map(|array| self.hide(&array)).transpose();
                AttentionGradients::Apart([hide(q)?, hide(k)?, hide(v)?])
            }
        })
    }
}
