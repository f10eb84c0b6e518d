//! Attention in the layout of each reference.

use phalanx_tensor::nn::Linear;
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Init, Param, Result, Scope, Tape, TensorError, Value, ops};

use super::config::TranslationLayout;
use crate::projected_attention::ProjectedAttention;

/// The projections of an attention.
#[derive(Debug)]
pub(super) enum Attention {
    /// Four linear layers.
    Apart(ProjectedAttention),
    /// One for queries, keys and values, and one for the result.
    Packed(PackedAttention),
}

impl Attention {
    pub(super) fn new(
        scope: &Scope,
        layout: TranslationLayout,
        width: usize,
        heads: usize,
        init: Init,
    ) -> Result<Self> {
        let linear = |name: &str| Linear::with_init(&scope.pp(name), width, width, init, Some(Init::ZEROS));
        Ok(match layout {
            TranslationLayout::Marian => Self::Apart(ProjectedAttention {
                key: linear("k_proj")?,
                value: linear("v_proj")?,
                query: linear("q_proj")?,
                out: linear("out_proj")?,
                head_dim: width / heads,
            }),
            TranslationLayout::Torch => Self::Packed(PackedAttention {
                weight: scope.param("in_proj_weight", (3 * width, width), init)?,
                bias: scope.param("in_proj_bias", 3 * width, Init::ZEROS)?,
                out: linear("out_proj")?,
                head_dim: width / heads,
            }),
        })
    }

    /// Projects states [N, S, C] to keys and values, [N, S, heads, C / heads] each.
    pub(super) fn keys_and_values(&self, tape: &Tape, seen: &Value) -> Result<[Value; 2]> {
        match self {
            Self::Apart(attention) => attention.keys_and_values(tape, seen),
            Self::Packed(attention) => {
                Ok([attention.project(tape, seen, 1)?, attention.project(tape, seen, 2)?])
            }
        }
    }

    /// Maps states [N, T, C], which attend to given keys and values, to [N, T, C].
    pub(super) fn attend(
        &self,
        tape: &Tape,
        x: &Value,
        [keys, values]: [&Value; 2],
        options: &AttentionOptions,
    ) -> Result<Value> {
        match self {
            Self::Apart(attention) => attention.attend(tape, x, [keys, values], options),
            Self::Packed(attention) => {
                let queries = attention.project(tape, x, 0)?;
                let mixed = ops::attention(tape, &queries, keys, values, options)?;
                let &[batch, length, heads, dim] = mixed.dims() else {
                    return Err(TensorError::Shape {
                        op: "attention",
                        problem: format!("{:?}", mixed.shape()),
                    });
                };
                attention.out.forward(tape, &ops::reshape(tape, &mixed, (batch, length, heads * dim))?)
            }
        }
    }

    /// Maps states [N, T, C] to [N, T, C], each attending to those of `seen`.
    pub(super) fn forward(
        &self,
        tape: &Tape,
        x: &Value,
        seen: &Value,
        options: &AttentionOptions,
    ) -> Result<Value> {
        let [keys, values] = self.keys_and_values(tape, seen)?;
        self.attend(tape, x, [&keys, &values], options)
    }
}

/// The projections of `torch.nn.MultiheadAttention`, whose first one has the rows of queries, keys and values.
#[derive(Debug)]
pub(super) struct PackedAttention {
    weight: Param,
    bias: Param,
    out: Linear,
    /// The width of a head. A rank may have some of the heads.
    head_dim: usize,
}

impl PackedAttention {
    /// Projects states [N, T, C] by one third of the projection to heads [N, T, heads, C / heads].
    fn project(&self, tape: &Tape, x: &Value, third: usize) -> Result<Value> {
        let rows = |param: &Param| ops::projection_part(tape, &tape.param(param)?, third, 3);
        let projected = ops::linear(tape, x, &rows(&self.weight)?, Some(&rows(&self.bias)?))?;
        let &[batch, length, width] = projected.dims() else {
            let problem = format!("expected [N, T, C], not {:?}", x.shape());
            return Err(TensorError::Shape { op: "attention", problem });
        };
        ops::reshape(tape, &projected, (batch, length, width / self.head_dim, self.head_dim))
    }
}
