//! Softmax and scaled dot-product attention (Vaswani et al. 2017).

use crate::backend::{
    Array, ArrayBackend, AttentionBackward, AttentionGradients, AttentionHeads, AttentionInputs,
    AttentionMask, AttentionOperands, AttentionShape, Dropout, SamplePart,
};
use crate::group::even_lens;
use crate::tape::{Op, Placement, PlacementRule, SavedValue, Tape, Value};
use crate::{Result, TensorError};

use super::Indices;
use super::cut::{copy_for_parts, moved};
use super::shape::narrow_by;

const OP: &str = "attention";

/// Computes softmax over the last dimension.
///
/// # Errors
/// If the element type is not supported.
pub fn softmax(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.contiguous()?;
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
    /// The number of heads of queries of the layer, of which a rank may have some: dropout, and keys that several ranks share, need to
    /// know which. 0 if all are there.
    pub heads: usize,
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
/// Where layers are cut over ranks, a rank may have some heads of queries with their keys, or with all keys if there are fewer heads of
/// keys than ranks.
///
/// # Errors
/// If the shapes or the placements do not match, or the dropout is not in [0, 1).
pub fn attention(tape: &Tape, q: &Value, k: &Value, v: &Value, options: &AttentionOptions) -> Result<Value> {
    let [k, v] = &shared_heads(tape, q, [k, v], options.heads)?;
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
    let rule = rule_of_heads(operands);
    let arrays = contiguous(operands.iter().map(|operand| operand.part()))?;
    let backend = Array::backend_of(tape.context(), &arrays);
    let dropout = super::dropout::drawn(tape, options.dropout)?;
    let dropout =
        dropout.map(|dropout| of_heads(tape, dropout, (rule, shape.heads), options.heads)).transpose()?;
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
    tape.push_by(rule, op, operands, attended.output, move |tape, grad, grads| {
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

/// Returns the heads of keys and values that the queries of this rank share, if this rank has some of the `all` heads of queries and
/// every rank has all keys.
fn shared_heads(tape: &Tape, q: &Value, keys: [&Value; 2], all: usize) -> Result<[Value; 2]> {
    let heads = Placement::Shard { dim: 2 };
    let is_whole = |of: &Value| matches!(of.placement(), Some(Placement::Same | Placement::Copied));
    let group = tape.session().tensor_ranks().filter(|_| q.placement() == Some(heads));
    let (Some(group), true) = (group, keys.into_iter().all(is_whole)) else {
        return Ok(keys.map(Clone::clone));
    };
    let count = |of: &Value| of.dims().get(2).copied().unwrap_or(0);
    let (own, key_heads) = (count(q), count(keys[0]));
    let (lens, rank) = (even_lens(all, group.size()), group.rank());
    let first = lens[..rank].iter().sum::<usize>();
    let of_key = all / key_heads.max(1);
    let own_keys = first / of_key.max(1)..(first + own).saturating_sub(1) / of_key.max(1) + 1;
    let fits = own_keys.len() == 1 || first.is_multiple_of(of_key) && own.is_multiple_of(of_key);
    if lens[rank] != own || of_key * key_heads != all || !fits {
        let problem = format!(
            "attention: rank {rank} has {own} of {all} heads of queries, which do not share whole heads of {key_heads} of keys"
        );
        return Err(TensorError::placement(problem));
    }
    let own = |of: &Value| {
        narrow_by(tape, PlacementRule::Own(heads), &copy_for_parts(tape, of)?, (2, own_keys.clone()))
    };
    Ok([own(keys[0])?, own(keys[1])?])
}

/// Returns the dropout of the heads that this rank has of `all`.
fn of_heads(
    tape: &Tape,
    dropout: Dropout,
    (rule, own): (PlacementRule, usize),
    all: usize,
) -> Result<Dropout> {
    let (PlacementRule::Own(_), Some(group)) = (rule, tape.session().tensor_ranks()) else {
        return Ok(dropout);
    };
    let lens = even_lens(all, group.size());
    let rank = group.rank();
    if lens[rank] != own {
        let problem = format!("attention: rank {rank} has {own} heads of {all}, whose dropout is not known");
        return Err(TensorError::placement(problem));
    }
    if group.size() == 1 {
        return Ok(dropout);
    }
    let part = SamplePart { first: lens[..rank].iter().sum(), own, all };
    Ok(Dropout { part: Some(part), ..dropout })
}

/// The rule of attention: heads do not depend on each other, so ranks may have some of them.
fn rule_of_heads(operands: &[&Value]) -> PlacementRule {
    let heads = Placement::Shard { dim: 2 };
    let expected = if operands.len() == 1 { Placement::Joint { dim: 2, parts: 3 } } else { heads };
    match operands.iter().all(|operand| operand.placement() == Some(expected)) {
        true => PlacementRule::Own(heads),
        false => PlacementRule::Whole,
    }
}

/// Takes a projection [N, T, (heads + 2·key heads)·D] apart: queries [N, T, heads, D], keys and values [N, T, key heads, D]. A rank that
/// has some of the heads has the parts of all three.
///
/// # Errors
/// If the shape is another.
pub fn projected_heads(
    tape: &Tape,
    projected: &Value,
    heads: impl Into<AttentionHeads>,
) -> Result<[Value; 3]> {
    let AttentionHeads { queries, keys } = heads.into();
    let &[batch, length, all] = projected.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, T, C], not {:?}", projected.shape())));
    };
    let dim = all / (queries + 2 * keys).max(1);
    if (queries + 2 * keys) * dim != all {
        let problem =
            format!("{all} elements are not those of {queries} queries, {keys} keys and {keys} values");
        return Err(TensorError::shape(OP, problem));
    }
    let rule = match rule_of_heads(&[projected]) {
        PlacementRule::Whole => moved("narrow", projected, |_| None)?,
        of_heads => of_heads,
    };
    let mut start = 0;
    let mut part = |heads: usize| {
        let range = start..start + heads * dim;
        start = range.end;
        let part = narrow_by(tape, rule, projected, (2, range))?;
        super::reshape(tape, &part, (batch, length, heads, dim))
    };
    Ok([part(queries)?, part(keys)?, part(keys)?])
}

/// Returns the rows of part `index` of the `parts` that a joint projection has in its weight [O, I] or its bias `[O]`: those of the
/// queries, the keys or the values. A rank that has some of the heads has the rows of its heads.
///
/// # Errors
/// If the parts do not divide the rows, or the value is cut along another dimension.
pub fn projection_part(tape: &Tape, value: &Value, index: usize, parts: usize) -> Result<Value> {
    let rows = value.dims().first().copied().unwrap_or(0);
    if index >= parts || !rows.is_multiple_of(parts) {
        let problem = format!("part {index} of {parts} of the rows of {:?}", value.shape());
        return Err(TensorError::shape(OP, problem));
    }
    let rule = match value.placement() {
        Some(Placement::Joint { dim: 0, parts: of }) if of == parts => {
            PlacementRule::Own(Placement::Shard { dim: 0 })
        }
        _ => moved("narrow", value, Some)?,
    };
    narrow_by(tape, rule, value, (0, index * rows / parts..(index + 1) * rows / parts))
}

fn contiguous(arrays: impl Iterator<Item = Result<Array>>) -> Result<Vec<Array>> {
    arrays.map(|array| Ok(array?.contiguous()?)).collect()
}

fn joined_or_apart(arrays: &[Array]) -> Result<AttentionOperands<'_>> {
    match arrays {
        [all] => Ok(AttentionOperands::Joined(all)),
        [q, k, v] => Ok(AttentionOperands::Apart([q, k, v])),
        other => Err(TensorError::shape(OP, format!("{} operands", other.len()))),
    }
}
