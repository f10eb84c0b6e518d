//! Matrix products and attention.

use phalanx_tensor::ops::WeightLayout;

use super::{Lowering, TracedOp};
use crate::dims::Dim;
use crate::error::Result;
use crate::node::{Attribute, Values};

impl Lowering {
    /// Adds x·W + b of rows with any number of leading dimensions.
    pub(super) fn linear(&mut self, op: TracedOp<'_>, layout: WeightLayout) -> Result<String> {
        let turned = layout == WeightLayout::OutputsFirst;
        let (x, weight) = (self.input(op, 0)?, self.input(op, 1)?);
        let bias = self.optional_input(op, 2)?;
        if op.dims.len() == 2 {
            let inputs = [x, weight].into_iter().chain(bias);
            return Ok(self.emit("Gemm", inputs, vec![("transB", Attribute::flag(turned))]));
        }
        let weight = match turned {
            true => self.emit("Transpose", [weight], vec![("perm", Attribute::sizes(&[1, 0]))]),
            false => weight,
        };
        let product = self.emit("MatMul", [x, weight], Vec::new());
        Ok(match bias {
            Some(bias) => self.emit("Add", [product, bias], Vec::new()),
            None => product,
        })
    }

    /// Adds softmax(q·kᵀ/√D)·v.
    pub(super) fn attention(&mut self, op: TracedOp<'_>, causal: bool) -> Result<String> {
        let (q, k, v) = (self.input(op, 0)?, self.input(op, 1)?, self.input(op, 2)?);
        let &[.., Dim::Fixed(length), Dim::Fixed(width)] = op.dims else { return Err(op.unsupported()) };
        let k = self.emit("Transpose", [k], vec![("perm", Attribute::sizes(&[0, 1, 3, 2]))]);
        let products = self.emit("MatMul", [q, k], Vec::new());
        let factor = self.scalar(1.0 / (width as f64).sqrt());
        let mut scores = self.emit("Mul", [products, factor], Vec::new());
        if causal {
            let hidden = |at: usize| if at % length > at / length { f32::NEG_INFINITY } else { 0.0 };
            let mask = (0..length * length).map(hidden).collect();
            let mask = self.constant(vec![length, length], Values::F32(mask));
            scores = self.emit("Add", [scores, mask], Vec::new());
        }
        let weights = self.emit("Softmax", [scores], vec![("axis", Attribute::Int(-1))]);
        Ok(self.emit("MatMul", [weights, v], Vec::new()))
    }
}
