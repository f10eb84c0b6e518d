//! Multi-head self-attention.

use crate::init::Init;
use crate::ops::AttentionOptions;
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError, ops};

use super::Linear;

/// Self-attention with the names of `torch.nn.MultiheadAttention`: `in_proj_weight` [3C, C], `in_proj_bias`
/// `[3C]`, `out_proj.weight` [C, C], `out_proj.bias` `[C]`.
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    in_weight: Param,
    in_bias: Param,
    out: Linear,
    head_dim: usize,
}

impl MultiHeadAttention {
    /// Makes attention of `width` elements in `heads` heads, with given initial values of the two projections.
    ///
    /// # Errors
    /// If the heads do not divide the width, or a name is taken.
    pub fn new(scope: &Scope, width: usize, heads: usize, in_init: Init, out_init: Init) -> Result<Self> {
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(TensorError::shape(
                "attention",
                format!("{heads} heads do not divide a width of {width}"),
            ));
        }
        Ok(Self {
            in_weight: scope.param("in_proj_weight", (3 * width, width), in_init)?,
            in_bias: scope.param("in_proj_bias", 3 * width, Init::ZEROS)?,
            out: Linear::with_init(&scope.pp("out_proj"), width, width, out_init, Some(Init::ZEROS))?,
            head_dim: width / heads,
        })
    }

    /// Maps [N, T, C] to [N, T, C].
    ///
    /// # Errors
    /// If the shape is another.
    pub fn forward(&self, tape: &Tape, x: &Value, options: &AttentionOptions) -> Result<Value> {
        let all = ops::linear(tape, x, &tape.param(&self.in_weight)?, Some(&tape.param(&self.in_bias)?))?;
        // A rank may have some of the heads.
        let heads = all.dims().last().copied().unwrap_or(0) / (3 * self.head_dim);
        self.out.forward(tape, &ops::self_attention(tape, &all, heads, options)?)
    }
}
