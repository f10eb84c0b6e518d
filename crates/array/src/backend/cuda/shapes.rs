//! Moving elements with the GPU kernels.

use candle_core::{DType, Shape};
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::Result;
use crate::backend::{Array, Shapes};
use crate::storage::is_half;

impl Shapes for Cuda {
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array> {
        let from = self.open("permute", x)?;
        let slice = kernels::permute(self.gpu(), from.slice()?, from.dims(), dims)?;
        Ok(self.array(slice, dims.iter().map(|at| from.dims()[*at]).collect::<Vec<_>>()))
    }

    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array> {
        let from = self.open("narrow", x)?;
        let slice = kernels::narrow(self.gpu(), from.slice()?, from.dims(), dim, start, len)?;
        let mut dims = from.dims().to_vec();
        dims[dim] = len;
        Ok(self.array(slice, dims))
    }

    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array> {
        let from = self.open("pad", x)?;
        let slice = kernels::pad_with_zeros(self.gpu(), from.slice()?, from.dims(), dim, before, after)?;
        let mut dims = from.dims().to_vec();
        dims[dim] += before + after;
        Ok(self.array(slice, dims))
    }

    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array> {
        const OP: &str = "cat";
        // A f32 constant does not widen an activation, as in sums.
        let low = arrays.iter().map(Array::dtype).find(|dtype| is_half(*dtype));
        let alike = |array: &Array| match low {
            Some(low) if array.dtype() == DType::F32 => {
                kernels::convert(self.gpu(), self.slice(OP, array)?, element_type(OP, low)?)
                    .map_err(Into::into)
            }
            _ => self.slice(OP, array).cloned(),
        };
        let slices = arrays.iter().map(alike).collect::<Result<Vec<_>>>()?;
        let parts: Vec<_> = slices.iter().zip(arrays).map(|(slice, array)| (slice, array.dims())).collect();
        let slice = kernels::cat(self.gpu(), &parts, dim)?;
        let mut dims = arrays[0].dims().to_vec();
        dims[dim] = arrays.iter().map(|array| array.dims()[dim]).sum();
        Ok(self.array(slice, dims))
    }

    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array> {
        let from = self.open("broadcast_as", x)?;
        let slice = kernels::broadcast_as(self.gpu(), from.slice()?, from.dims(), shape.dims())?;
        Ok(self.array(slice, shape.clone()))
    }
}
