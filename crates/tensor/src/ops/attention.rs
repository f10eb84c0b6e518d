//! Softmax and scaled dot-product attention (Vaswani et al. 2017).

use crate::backend::{
    Array, ArrayBackend, AttentionBackward, AttentionGradients, AttentionHeads, AttentionInputs,
    AttentionMask, AttentionOperands, AttentionShape, Dropout,
};
use crate::tape::{Op, SavedValue, Tape, Value};
use crate::{Result, TensorError};

use super::Indices;

const OP: &str = "attention";

/// Computes softmax over the last dimension.
///
/// # Errors
/// If the element type is not supported.
pub fn softmax(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.array()?.contiguous()?;
    let output = input.backend(tape.context()).softmax(&input, input.dtype())?;
    let saved = output.clone();
    tape.push(Op::Softmax, &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).softmax_backward(&saved, &grad)?)
    })
}

/// The options of attention: its mask and its dropout. By default every query sees every key, and no weight is dropped.
#[derive(Debug, Clone, Default)]
pub struct AttentionOptions {
    /// The keys that each query sees.
    pub mask: AttentionMask,
    /// The probability that a weight becomes 0 in training. The others are divided by 1 − p.
    pub dropout: f64,
}

impl AttentionOptions {
    /// Returns the options of causal attention.
    pub fn causal() -> Self {
        let mask = AttentionMask { causal: true, ..AttentionMask::default() };
        Self { mask, ..Self::default() }
    }

    /// Returns true if a mask with arrays, a window or dropout makes this more than plain or causal attention.
    fn is_described(&self, dropout: Option<Dropout>) -> bool {
        let AttentionMask { causal: _, window, lengths, starts } = &self.mask;
        dropout.is_none() && window.is_none() && lengths.is_none() && starts.is_none()
    }

    /// Returns the mask with its arrays on a back end.
    fn mask_on(&self, backend: &dyn ArrayBackend, shape: &AttentionShape) -> Result<AttentionMask> {
        let AttentionMask { causal, window, lengths, starts } = &self.mask;
        if *window == Some(0) || (window.is_some() && !causal) {
            return Err(TensorError::shape(OP, "a window needs `causal` and at least one key"));
        }
        let on = |name: &str, array: &Option<Array>, dims: &[usize]| match array {
            Some(array) if array.dims() != dims => {
                let problem = format!("`{name}` should be {dims:?}, not {:?}", array.dims());
                Err(TensorError::shape(OP, problem))
            }
            Some(array) => Indices::from(array).on(OP, backend).map(Some),
            None => Ok(None),
        };
        Ok(AttentionMask {
            causal: *causal,
            window: *window,
            lengths: on("lengths", lengths, &[shape.batch])?,
            starts: on("starts", starts, &[shape.batch, shape.length])?,
        })
    }
}

fn check_heads(AttentionHeads { queries, keys }: AttentionHeads) -> Result<()> {
    if keys == 0 || queries == 0 || !queries.is_multiple_of(keys) {
        let problem = format!("{queries} heads of queries cannot share {keys} heads of keys");
        return Err(TensorError::shape(OP, problem));
    }
    Ok(())
}

/// Computes softmax(q·kᵀ/√D)·v, with the softmax in f32: self-attention or cross-attention.
///
/// `q` is [N, T, heads, D], as a projection writes it, `k` and `v` are [N, S, key heads, D], and the result is
/// [N, T, heads, D]. With more heads of queries than of keys, successive heads of queries share one. A query that sees
/// no key gets 0. In causal attention the last query is at the position of the last key.
///
/// # Errors
/// If the shapes do not match, or the dropout is not in [0, 1).
pub fn attention(tape: &Tape, q: &Value, k: &Value, v: &Value, options: &AttentionOptions) -> Result<Value> {
    let (&[batch, length, heads, dim], &[_, keys, key_heads, _]) = (q.dims(), k.dims()) else {
        let problem = format!("expected [N, T, heads, D], not {:?} and {:?}", q.shape(), k.shape());
        return Err(TensorError::shape(OP, problem));
    };
    check_heads(AttentionHeads { queries: heads, keys: key_heads })?;
    let shape = AttentionShape { batch, heads, key_heads, length, keys, dim };
    for other in [k, v] {
        if *other.shape() != shape.positions() {
            return Err(TensorError::unequal(OP, &shape.positions(), other.shape()));
        }
    }
    record(tape, &[q, k, v], shape, options, |causal| Op::Attention { causal })
}

/// Computes attention of a projection [N, T, (heads + 2·key heads)·D] of queries, keys and values to itself. The result
/// is [N, T, heads·D]. Nothing is copied apart.
///
/// # Errors
/// If the shape is another, or the dropout is not in [0, 1).
pub fn self_attention(
    tape: &Tape,
    projected: &Value,
    heads: impl Into<AttentionHeads>,
    options: &AttentionOptions,
) -> Result<Value> {
    let heads = heads.into();
    check_heads(heads)?;
    let AttentionHeads { queries, keys } = heads;
    let &[batch, length, all] = projected.dims() else {
        let problem = format!("expected [N, T, C], not {:?}", projected.shape());
        return Err(TensorError::shape(OP, problem));
    };
    if !all.is_multiple_of(queries + 2 * keys) {
        let problem =
            format!("{all} elements are not those of {queries} queries, {keys} keys and {keys} values");
        return Err(TensorError::shape(OP, problem));
    }
    let dim = all / (queries + 2 * keys);
    let shape = AttentionShape { batch, heads: queries, key_heads: keys, length, keys: length, dim };
    let mixed = record(tape, &[projected], shape, options, |causal| Op::SelfAttention { heads, causal })?;
    super::reshape(tape, &mixed, (batch, length, queries * dim))
}

/// Computes attention of one or three operands and records its backward. `describe` gives the op, by its causality.
fn record(
    tape: &Tape,
    operands: &[&Value],
    shape: AttentionShape,
    options: &AttentionOptions,
    describe: impl FnOnce(bool) -> Op,
) -> Result<Value> {
    let precision = tape.session().precision;
    let arrays = contiguous(operands.iter().map(|operand| operand.array()))?;
    let backend = arrays[0].backend(tape.context());
    let dropout = super::dropout::drawn(tape, options.dropout)?;
    let mask = options.mask_on(backend, &shape)?;
    let inputs =
        AttentionInputs { shape, mask: &mask, dropout, operands: joined_or_apart(&arrays)?, precision };
    let attended = backend.attention(inputs)?;
    // A product of queries with keys or values.
    let product = mask.pairs(shape.length, shape.keys) * shape.batch * shape.heads * shape.dim;
    tape.count_forward(2 * product);
    let saved_operands: Vec<SavedValue> = operands.iter().map(|operand| operand.save()).collect();
    let (output, saved) = (attended.output.clone(), attended.saved);
    let op = match options.is_described(dropout) {
        true => describe(options.mask.causal),
        false => OP.into(),
    };
    tape.push(op, operands, attended.output, move |tape, grad, grads| {
        let arrays = contiguous(saved_operands.iter().map(SavedValue::array))?;
        let grad = grad.contiguous()?;
        let precision = tape.session().precision;
        let inputs =
            AttentionInputs { shape, mask: &mask, dropout, operands: joined_or_apart(&arrays)?, precision };
        let mut wants = [false; 3];
        (0..arrays.len()).for_each(|index| wants[index] = grads.wants(index));
        let [q, k, v] = if arrays.len() == 1 { [true; 3] } else { wants };
        // The gradients of weights, which those of queries and keys follow from, count as one more.
        tape.count_backward(product * [q || k, q, k, v].into_iter().filter(|wanted| *wanted).count());
        let of = AttentionBackward { inputs, output: &output, saved: &saved, grad: &grad, wants };
        match grad.backend(tape.context()).attention_backward(of)? {
            AttentionGradients::Joined(grad) => grads.add(0, grad),
            AttentionGradients::Apart(all) => {
                let given = all.into_iter().enumerate();
                given
                    .filter_map(|(index, grad)| Some((index, grad?)))
                    .try_for_each(|(i, grad)| grads.add(i, grad))
            }
        }
    })
}

fn contiguous(arrays: impl Iterator<Item = Result<Array>>) -> Result<Vec<Array>> {
    arrays.map(|array| array?.contiguous()).collect()
}

fn joined_or_apart(arrays: &[Array]) -> Result<AttentionOperands<'_>> {
    match arrays {
        [all] => Ok(AttentionOperands::Joined(all)),
        [q, k, v] => Ok(AttentionOperands::Apart([q, k, v])),
        other => Err(TensorError::shape(OP, format!("{} operands", other.len()))),
    }
}
