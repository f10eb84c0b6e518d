//! Moving elements, by candle.

use candle_core::{DType, Shape, Tensor};

use crate::backend::{Array, Shapes};
use crate::storage::{cast, is_half};
use crate::{Context, Result};

impl Shapes for Context {
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array> {
        Ok(x.host("permute")?.permute(dims)?.contiguous()?.into())
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
