//! Operations that move elements without changing them.

use candle_core::{DType, Shape, Tensor};

use super::arithmetic::sum_to_shape;
use crate::storage::{cast, is_half};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Gives the elements of a value, in row-major order, another shape.
///
/// # Errors
/// If the numbers of elements differ.
pub fn reshape(tape: &Tape, x: &Value, shape: impl Into<Shape>) -> Result<Value> {
    let shape = shape.into();
    if shape.elem_count() != x.shape().elem_count() {
        let problem = format!("{:?} has not as many elements as {shape:?}", x.shape());
        return Err(TensorError::shape("reshape", problem));
    }
    let before = x.shape().clone();
    let output = x.tensor()?.reshape(shape)?;
    tape.push("reshape", &[x], output, move |_, grad, grads| grads.share(0, grad.tensor()?.reshape(&before)?))
}

/// The dimensions in another order.
///
/// # Errors
/// If `dims` is not a permutation of the dimensions.
pub fn permute(tape: &Tape, x: &Value, dims: &[usize]) -> Result<Value> {
    let mut inverse = vec![0; dims.len()];
    for (to, from) in dims.iter().enumerate() {
        match inverse.get_mut(*from) {
            Some(slot) => *slot = to,
            None => return Err(TensorError::shape("permute", format!("{dims:?} for shape {:?}", x.shape()))),
        }
    }
    let output = x.tensor()?.permute(dims)?.contiguous()?;
    tape.push("permute", &[x], output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, grad.permute(inverse.as_slice())?.contiguous()?)
    })
}

/// Two dimensions swapped.
///
/// # Errors
/// If a dimension is out of range.
pub fn transpose(tape: &Tape, x: &Value, dim1: usize, dim2: usize) -> Result<Value> {
    let output = x.tensor()?.transpose(dim1, dim2)?.contiguous()?;
    tape.push("transpose", &[x], output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, grad.transpose(dim1, dim2)?.contiguous()?)
    })
}

/// Elements `start..start + len` of one dimension.
///
/// # Errors
/// If the range is out of bounds.
pub fn narrow(tape: &Tape, x: &Value, dim: usize, start: usize, len: usize) -> Result<Value> {
    let shape = x.shape().clone();
    let output = x.tensor()?.narrow(dim, start, len)?.contiguous()?;
    tape.push("narrow", &[x], output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        let after = shape.dims()[dim] - start - len;
        grads.add(0, grad.pad_with_zeros(dim, start, after)?.contiguous()?)
    })
}

/// Several values one after the other along `dim`.
///
/// # Errors
/// If the other dimensions differ, or there are no values.
pub fn cat(tape: &Tape, values: &[&Value], dim: usize) -> Result<Value> {
    let mut tensors = values.iter().map(|value| value.tensor()).collect::<Result<Vec<_>>>()?;
    // An activation that a f32 constant is put beside stays one, as in sums.
    if let Some(low) = tensors.iter().map(Tensor::dtype).find(|dtype| is_half(*dtype)) {
        for tensor in tensors.iter_mut().filter(|tensor| tensor.dtype() == DType::F32) {
            *tensor = cast(tape.context(), tensor, low)?;
        }
    }
    let lens: Vec<usize> = values.iter().map(|value| value.dims().get(dim).copied().unwrap_or(0)).collect();
    let output = Tensor::cat(&tensors, dim)?;
    tape.push("cat", values, output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        let mut start = 0;
        for (index, len) in lens.into_iter().enumerate() {
            if grads.wants(index) {
                grads.share(index, grad.narrow(dim, start, len)?.contiguous()?)?;
            }
            start += len;
        }
        Ok(())
    })
}

/// The value repeated to a larger shape, by PyTorch's rules.
///
/// # Errors
/// If it does not broadcast to that shape.
pub fn broadcast_as(tape: &Tape, x: &Value, shape: impl Into<Shape>) -> Result<Value> {
    let before = x.shape().clone();
    let output = x.tensor()?.broadcast_as(shape)?.contiguous()?;
    tape.push("broadcast_as", &[x], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, sum_to_shape(tape.context(), grad, &before)?)
    })
}
