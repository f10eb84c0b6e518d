//! Multi-head attention with a projection each for queries, keys, values and the result.

use phalanx_tensor::nn::Linear;
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

/// Attention of states to themselves or to other states.
#[derive(Debug)]
pub(crate) struct ProjectedAttention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) out: Linear,
    /// The width of a head. A rank may have some of the heads.
    pub(crate) head_dim: usize,
}

impl ProjectedAttention {
    /// Maps states [N, T, C], which attend to `seen` [N, S, C], to [N, T, C].
    pub(crate) fn forward(
        &self,
        tape: &Tape,
        x: &Value,
        seen: &Value,
        options: &AttentionOptions,
    ) -> Result<Value> {
        let [keys, values] = self.keys_and_values(tape, seen)?;
        self.attend(tape, x, [&keys, &values], options)
    }

    /// Projects states [N, S, C] to keys and values, [N, S, heads, C / heads] each.
    pub(crate) fn keys_and_values(&self, tape: &Tape, seen: &Value) -> Result<[Value; 2]> {
        Ok([self.split(tape, &self.key, seen)?, self.split(tape, &self.value, seen)?])
    }

    /// Maps states [N, T, C], which attend to given keys and values, to [N, T, C].
    pub(crate) fn attend(
        &self,
        tape: &Tape,
        x: &Value,
        [keys, values]: [&Value; 2],
        options: &AttentionOptions,
    ) -> Result<Value> {
        let queries = self.split(tape, &self.query, x)?;
        let mixed = ops::attention(tape, &queries, keys, values, options)?;
        let &[batch, length, heads, dim] = mixed.dims() else {
            return Err(TensorError::Shape { op: "attention", problem: format!("{:?}", mixed.shape()) });
        };
        self.out.forward(tape, &ops::reshape(tape, &mixed, (batch, length, heads * dim))?)
    }

    fn split(&self, tape: &Tape, layer: &Linear, x: &Value) -> Result<Value> {
        let projected = layer.forward(tape, x)?;
        let &[batch, length, width] = projected.dims() else {
            let problem = format!("expected [N, T, C], not {:?}", x.shape());
            return Err(TensorError::Shape { op: "attention", problem });
        };
        ops::reshape(tape, &projected, (batch, length, width / self.head_dim, self.head_dim))
    }
}

/// Checks that the sizes of a transformer are positive and that heads divide the width.
pub(crate) fn check_sizes(
    op: &'static str,
    sizes: &[(&'static str, usize)],
    width: usize,
    heads: usize,
) -> Result<()> {
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(TensorError::Shape { op, problem: format!("`{name}` is 0") });
    }
    if heads == 0 || !width.is_multiple_of(heads) {
        let problem = format!("{heads} heads do not divide a width of {width}");
        return Err(TensorError::Shape { op, problem });
    }
    Ok(())
}
