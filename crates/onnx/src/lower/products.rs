//! Matrix products and attention.

use phalanx_tensor::ops::{AttentionHeads, WeightLayout};

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

    /// Adds softmax(q·kᵀ/√D)·v of queries, keys and values [N, T, heads, D].
    pub(super) fn attention(&mut self, op: TracedOp<'_>, causal: bool) -> Result<String> {
        let parts = [self.input(op, 0)?, self.input(op, 1)?, self.input(op, 2)?];
        self.attention_of(op, parts, causal)
    }

    /// Adds attention of a projection [N, T, 3·heads·D] to itself.
    pub(super) fn self_attention(
        &mut self,
        op: TracedOp<'_>,
        heads: AttentionHeads,
        causal: bool,
    ) -> Result<String> {
        let projected = self.input(op, 0)?;
        let &[.., Dim::Fixed(length), Dim::Fixed(count), Dim::Fixed(width)] = op.dims else {
            return Err(op.unsupported());
        };
        if heads.keys != heads.queries {
            return Err(op.unsupported());
        }
        // A 0 keeps the batch.
        let shape = self.integers(&[0, length as i64, 3, count as i64, width as i64]);
        let all = self.emit("Reshape", [projected, shape], Vec::new());
        let parts = [0, 1, 2].map(|part| {
            let index = self.constant(vec![], Values::I64(vec![part]));
            self.emit("Gather", [all.clone(), index], vec![("axis", Attribute::Int(2))])
        });
        self.attention_of(op, parts, causal)
    }

    fn attention_of(&mut self, op: TracedOp<'_>, [q, k, v]: [String; 3], causal: bool) -> Result<String> {
        let &[.., Dim::Fixed(length), _, Dim::Fixed(width)] = op.dims else {
            return Err(op.unsupported());
        };
        let by_heads = |lowering: &mut Self, x: String, order: [usize; 4]| {
            lowering.emit("Transpose", [x], vec![("perm", Attribute::sizes(&order))])
        };
        let q = by_heads(self, q, [0, 2, 1, 3]);
        let k = by_heads(self, k, [0, 2, 3, 1]);
        let v = by_heads(self, v, [0, 2, 1, 3]);
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
        let mixed = self.emit("MatMul", [weights, v], Vec::new());
        Ok(by_heads(self, mixed, [0, 2, 1, 3]))
    }
}
