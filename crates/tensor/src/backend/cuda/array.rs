//! Arrays in a GPU's memory.

use candle_core::{DType, Shape};
use phalanx_cuda::Slice;

use super::{Cuda, dtype_of};
use crate::Result;
use crate::backend::{Array, ArrayBackend, DeviceArray};

/// An array in a GPU's memory: elements in row-major order, under a shape.
#[derive(Debug)]
pub struct CudaArray {
    slice: Slice,
    shape: Shape,
    /// What only this back end reads besides.
    beside: Option<Slice>,
    backend: Cuda,
}

impl CudaArray {
    pub(super) fn new(backend: Cuda, slice: Slice, shape: Shape) -> Self {
        debug_assert_eq!(slice.len(), shape.elem_count(), "elements and shape");
        Self { slice, shape, beside: None, backend }
    }

    /// An array that brings other elements along, for the back end's own use.
    pub(super) fn with(self, beside: Slice) -> Self {
        Self { beside: Some(beside), ..self }
    }

    /// The elements that it brings along.
    pub(super) fn beside(&self) -> Option<&Slice> {
        self.beside.as_ref()
    }

    /// The elements.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The GPU that has them.
    pub fn cuda(&self) -> &Cuda {
        &self.backend
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Sizes of a matrix.
    pub(super) fn dims2(&self) -> Result<(usize, usize)> {
        Ok(self.shape.dims2()?)
    }

    /// The last dimension: how wide rows are.
    pub(super) fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }
}

impl DeviceArray for CudaArray {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn dtype(&self) -> DType {
        dtype_of(self.slice.dtype())
    }

    fn backend(&self) -> &dyn ArrayBackend {
        &self.backend
    }

    fn view(&self, start: usize, shape: &Shape) -> Result<Array> {
        let slice = self.slice.view(start..start + shape.elem_count())?;
        Ok(self.backend.array(slice, shape.clone()))
    }
}
