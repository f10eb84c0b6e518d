//! Attention without numbers.

use super::{Outlines, expect_len};
use crate::Result;
use crate::backend::{
    Array, Attention, AttentionBackward, AttentionGradients, AttentionInputs, AttentionOperands,
    AttentionOutput,
};
use crate::storage::wide;

const OP: &str = "attention";

impl Attention for Outlines {
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let shape = of.shape;
        let operands: &[(&Array, _)] = match of.operands {
            AttentionOperands::Joined(all) => &[(all, shape.joined())],
            AttentionOperands::Apart([q, k, v]) => {
                &[(q, shape.queries()), (k, shape.positions()), (v, shape.positions())]
            }
        };
        operands.iter().try_for_each(|(array, shape)| expect_len(OP, array, shape.elem_count()))?;
        let dtype = wide(operands[0].0.dtype());
        Ok(AttentionOutput {
            output: self.array(shape.queries(), of.precision.product(dtype)),
            saved: self.array((shape.batch, shape.heads, shape.length), dtype),
        })
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        let shape = of.inputs.shape;
        expect_len(OP, of.grad, shape.queries().elem_count())?;
        match of.inputs.operands {
            AttentionOperands::Joined(all) => {
                Ok(AttentionGradients::Joined(self.array(shape.joined(), wide(all.dtype()))))
            }
            AttentionOperands::Apart(parts) => {
                let mut grads = [None, None, None];
                for ((grad, part), wanted) in grads.iter_mut().zip(parts).zip(of.wants) {
                    *grad = wanted.then(|| self.like(part, wide(part.dtype())));
                }
                Ok(AttentionGradients::Apart(grads))
            }
        }
    }
}
