//! Moving no elements.

use candle_core::{DType, Layout, Shape, Tensor};

use super::Outlines;
use crate::backend::{Array, Shapes};
use crate::storage::is_half;
use crate::{ArrayError, Result};

impl Outlines {
    /// Returns an array with the elements of a layout of `x`, in the same memory if they lie there in order.
    fn laid_out(
        &self,
        op: &'static str,
        x: &Array,
        layout: &Layout,
        same: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Array> {
        let Some(own) = self.own(op, x)? else {
            return Ok(self.array(layout.shape().clone(), x.dtype()));
        };
        let numbers = own.numbers().map(same).transpose()?;
        match (layout.is_contiguous(), numbers) {
            (true, numbers) => Ok(own.in_same_memory(layout.shape().clone(), numbers)),
            (false, Some(numbers)) => crate::backend::Transfers::from_host(self, &numbers),
            (false, None) => Ok(self.array(layout.shape().clone(), x.dtype())),
        }
    }
}

impl Shapes for Outlines {
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array> {
        let layout = Layout::contiguous(x.shape()).permute(dims)?;
        self.laid_out("permute", x, &layout, |x| x.permute(dims)?.contiguous())
    }

    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array> {
        let layout = Layout::contiguous(x.shape()).narrow(dim, start, len)?;
        self.laid_out("narrow", x, &layout, |x| x.narrow(dim, start, len)?.contiguous())
    }

    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array> {
        let mut dims = x.dims().to_vec();
        match dims.get_mut(dim) {
            Some(_) if before + after == 0 => return Ok(x.clone()),
            Some(size) => *size += before + after,
            None => return Err(ArrayError::shape("pad", format!("no dimension {dim} in {dims:?}"))),
        }
        Ok(self.array(dims, x.dtype()))
    }

    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array> {
        const OP: &str = "cat";
        let Some(first) = arrays.first() else { return Err(ArrayError::shape(OP, "no arrays")) };
        if let [only] = arrays {
            return Ok(only.clone());
        }
        let mut dims = first.dims().to_vec();
        if dim >= dims.len() {
            return Err(ArrayError::shape(OP, format!("no dimension {dim} in {dims:?}")));
        }
        for other in &arrays[1..] {
            let fits = other.rank() == dims.len()
                && other.dims().iter().zip(&dims).enumerate().all(|(at, (a, b))| at == dim || a == b);
            if !fits {
                return Err(ArrayError::unequal(OP, first.shape(), other.shape()));
            }
            dims[dim] += other.dims()[dim];
        }
        let types = || arrays.iter().map(Array::dtype);
        let dtype = types().find(|dtype| is_half(*dtype)).unwrap_or(first.dtype());
        if let Some(other) = types().find(|other| *other != dtype && *other != DType::F32) {
            return Err(ArrayError::dtype(OP, other));
        }
        Ok(self.array(dims, dtype))
    }

    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array> {
        let layout = Layout::contiguous(x.shape()).broadcast_as(shape.clone())?;
        self.laid_out("broadcast_as", x, &layout, |x| x.broadcast_as(shape.clone())?.contiguous())
    }
}
