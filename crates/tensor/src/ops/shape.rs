//! Operations that move elements without changing them.

use std::ops::Range;

use candle_core::Shape;

use super::cut::{moved, reshaped};
use crate::backend::Array;
use crate::tape::{Op, Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

/// Views the elements in row-major order under another shape.
///
/// # Errors
/// If the numbers of elements differ.
pub fn reshape(tape: &Tape, x: &Value, shape: impl Into<Shape>) -> Result<Value> {
    let shape = shape.into();
    if shape.elem_count() != x.shape().elem_count() {
        let problem = format!("{:?} and {shape:?} have different numbers of elements", x.shape());
        return Err(TensorError::shape("reshape", problem));
    }
    let before = x.shape().clone();
    let stays = |dim: usize| {
        let to = reshaped(x.dims(), shape.dims(), dim)?;
        // What lies one after the other along a dimension must stay together.
        let is_joint = matches!(x.placement(), Some(Placement::Joint { .. }));
        (!is_joint || shape.dims()[to] == x.dims()[dim]).then_some(to)
    };
    let rule = moved("reshape", x, stays)?;
    let output = x.part()?.reshape(shape)?;
    tape.push_by(rule, Op::Reshape, &[x], output, move |_, grad, grads| grads.share(0, grad.reshape(before)?))
}

/// Permutes the dimensions.
///
/// # Errors
/// If `dims` is not a permutation of the dimensions.
pub fn permute(tape: &Tape, x: &Value, dims: &[usize]) -> Result<Value> {
    let mut inverse = vec![usize::MAX; dims.len()];
    for (to, from) in dims.iter().enumerate() {
        if let Some(slot) = inverse.get_mut(*from) {
            *slot = to;
        }
    }
    if dims.len() != x.dims().len() || inverse.contains(&usize::MAX) {
        return Err(TensorError::shape("permute", format!("{dims:?} for shape {:?}", x.shape())));
    }
    let rule = moved("permute", x, |dim| dims.iter().position(|from| *from == dim))?;
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).permute(&x_t, dims)?;
    tape.push_by(rule, Op::Permute(dims.to_vec()), &[x], output, move |tape, grad, grads| {
        grads.share(0, grad.backend(tape.context()).permute(grad, &inverse)?)
    })
}

/// Swaps two dimensions.
///
/// # Errors
/// If a dimension is out of range.
pub fn transpose(tape: &Tape, x: &Value, dim1: usize, dim2: usize) -> Result<Value> {
    let rank = x.dims().len();
    if dim1.max(dim2) >= rank {
        let problem = format!("dimensions {dim1} and {dim2} for shape {:?}", x.shape());
        return Err(TensorError::shape("transpose", problem));
    }
    let mut dims: Vec<usize> = (0..rank).collect();
    dims.swap(dim1, dim2);
    permute(tape, x, &dims)
}

/// Returns elements `start..start + len` of one dimension.
///
/// # Errors
/// If the range is out of bounds.
pub fn narrow(tape: &Tape, x: &Value, dim: usize, start: usize, len: usize) -> Result<Value> {
    let inside = |size: &usize| start.checked_add(len).is_some_and(|end| end <= *size);
    let Some(size) = x.dims().get(dim).copied().filter(inside) else {
        let problem = format!("{len} from {start} of dimension {dim} for shape {:?}", x.shape());
        return Err(TensorError::shape("narrow", problem));
    };
    let rule = match x.placement() {
        // Of two things of one size, one after the other, this is one.
        Some(Placement::Joint { dim: cut, parts: 2 })
            if cut == dim && 2 * len == size && start.is_multiple_of(len) =>
        {
            PlacementRule::Own(Placement::Shard { dim })
        }
        _ => moved("narrow", x, |cut| (cut != dim || len == size).then_some(cut))?,
    };
    narrow_by(tape, rule, x, (dim, start..start + len))
}

/// As [`narrow`], by a rule for placements.
pub(super) fn narrow_by(
    tape: &Tape,
    rule: PlacementRule,
    x: &Value,
    (dim, range): (usize, Range<usize>),
) -> Result<Value> {
    let (size, start, len) = (x.dims()[dim], range.start, range.len());
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).narrow(&x_t, dim, start, len)?;
    tape.push_by(rule, Op::Narrow { dim, start, len }, &[x], output, move |tape, grad, grads| {
        let padded = grad.backend(tape.context()).pad_with_zeros(grad, dim, start, size - start - len)?;
        // The full range needs no padding: the gradient is the output's.
        if len == size { grads.share(0, padded) } else { grads.add(0, padded) }
    })
}

/// Pads dimension `dim` with `before` zeros in front and `after` behind.
///
/// # Errors
/// If the dimension is out of range.
pub fn pad_with_zeros(tape: &Tape, x: &Value, dim: usize, before: usize, after: usize) -> Result<Value> {
    let Some(size) = x.dims().get(dim).copied() else {
        return Err(TensorError::shape("pad_with_zeros", format!("{:?} has no dimension {dim}", x.shape())));
    };
    if before + after == 0 {
        return Ok(x.clone());
    }
    let rule = moved("pad_with_zeros", x, |cut| (cut != dim).then_some(cut))?;
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).pad_with_zeros(&x_t, dim, before, after)?;
    tape.push_by(rule, Op::Pad { dim, before, after }, &[x], output, move |tape, grad, grads| {
        grads.share(0, grad.backend(tape.context()).narrow(grad, dim, before, size)?)
    })
}

/// Concatenates values along `dim`.
///
/// # Errors
/// If the other dimensions differ, or there are no values.
pub fn cat(tape: &Tape, values: &[&Value], dim: usize) -> Result<Value> {
    let arrays = values.iter().map(|value| value.part()).collect::<Result<Vec<_>>>()?;
    if arrays.is_empty() {
        return Err(TensorError::shape("cat", "no values"));
    }
    let lens: Vec<usize> = values.iter().map(|value| value.dims().get(dim).copied().unwrap_or(0)).collect();
    let placement = values.first().and_then(|value| value.placement());
    let rule = match placement {
        Some(is)
            if !matches!(is, Placement::Same | Placement::Copied)
                && is.cut_dim() != Some(dim)
                && values.iter().all(|value| value.placement() == placement) =>
        {
            PlacementRule::Own(is)
        }
        _ => PlacementRule::Whole,
    };
    let output = Array::backend_of(tape.context(), &arrays).cat(&arrays, dim)?;
    tape.push_by(rule, Op::Cat(dim), values, output, move |tape, grad, grads| {
        let mut start = 0;
        for (index, len) in lens.into_iter().enumerate() {
            if grads.wants(index) {
                grads.share(index, grad.backend(tape.context()).narrow(grad, dim, start, len)?)?;
            }
            start += len;
        }
        Ok(())
    })
}

/// Broadcasts the value to a larger shape, by PyTorch's rules.
///
/// # Errors
/// If it does not broadcast to that shape.
pub fn broadcast_as(tape: &Tape, x: &Value, shape: impl Into<Shape>) -> Result<Value> {
    let before = x.shape().clone();
    let x_t = x.array()?;
    let output = x_t.backend(tape.context()).broadcast_as(&x_t, &shape.into())?;
    tape.push("broadcast_as", &[x], output, move |tape, grad, grads| {
        grads.share(0, grad.backend(tape.context()).sum_to_shape(grad, &before)?)
    })
}
