//! Moving elements: numbers in another order by the CPU kernel, all else by candle.

use candle_core::{DType, Device, Shape, Tensor, WithDType};
use phalanx_kernels::{Movable, bf16, f16, permute};

use crate::backend::{Array, Shapes};
use crate::storage::{AnyBits, TypedElements, cast, is_half, unwritten};
use crate::{Context, Result};

impl Shapes for Context {
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array> {
        const OP: &str = "permute";
        let x = x.host(OP)?.contiguous()?;
        let view = x.permute(dims)?;
        if view.is_contiguous() {
            return Ok(view.into());
        }
        match x.dtype() {
            DType::F32 => permuted::<f32>(self, OP, &x, dims, view.shape()),
            DType::F64 => permuted::<f64>(self, OP, &x, dims, view.shape()),
            DType::BF16 => permuted::<bf16>(self, OP, &x, dims, view.shape()),
            DType::F16 => permuted::<f16>(self, OP, &x, dims, view.shape()),
            _ => Ok(view.contiguous()?.into()),
        }
    }

    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array> {
        Ok(x.host("narrow")?.narrow(dim, start, len)?.contiguous()?.into())
    }

    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array> {
        Ok(x.host("pad")?.pad_with_zeros(dim, before, after)?.contiguous()?.into())
    }

    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array> {
        let mut tensors =
            arrays.iter().map(|array| Ok(array.host("cat")?.clone())).collect::<Result<Vec<_>>>()?;
        // A f32 constant does not widen an activation, as in sums.
        if let Some(half) = tensors.iter().map(Tensor::dtype).find(|dtype| is_half(*dtype)) {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.dtype() == DType::F32) {
                *tensor = cast(self, tensor, half)?;
            }
        }
        Ok(Tensor::cat(&tensors, dim)?.into())
    }

    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array> {
        Ok(x.host("broadcast_as")?.broadcast_as(shape)?.contiguous()?.into())
    }
}

/// Copies a contiguous tensor's elements in the order of `dims`.
fn permuted<T: Movable + AnyBits + WithDType>(
    context: &Context,
    op: &'static str,
    x: &Tensor,
    dims: &[usize],
    shape: &Shape,
) -> Result<Array> {
    let mut y = unwritten::<T>(x.elem_count());
    permute(context, x.dims(), dims, TypedElements::<T>::of(op, x)?.slice()?, &mut y)?;
    Ok(Tensor::from_vec(y, shape, &Device::Cpu)?.into())
}
