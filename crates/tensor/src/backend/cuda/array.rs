//! Arrays in a GPU's memory.

use std::sync::OnceLock;

use candle_core::{DType, Shape};
use phalanx_cuda::{Slice, kernels};

use super::{Cuda, dtype_of};
use crate::Result;
use crate::backend::{Array, ArrayBackend, DeviceArray};

/// In which order elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As the shape says.
    RowMajor,
    /// Those of [N, C, H, W] in the order N, H, W, C.
    ChannelsLast,
}

/// An array in a GPU's memory: elements under a shape.
#[derive(Debug)]
pub struct CudaArray {
    slice: Slice,
    order: Order,
    /// A copy in row-major order, once somebody needed it.
    rows: OnceLock<Slice>,
    shape: Shape,
    /// What only this back end reads besides.
    beside: Option<Slice>,
    backend: Cuda,
}

impl CudaArray {
    pub(super) fn new(backend: Cuda, slice: Slice, shape: Shape) -> Self {
        debug_assert_eq!(slice.len(), shape.elem_count(), "elements and shape");
        Self { slice, order: Order::RowMajor, rows: OnceLock::new(), shape, beside: None, backend }
    }

    /// Elements of [N, C, H, W] in the order N, H, W, C.
    pub(super) fn channels_last(backend: Cuda, slice: Slice, shape: Shape) -> Self {
        debug_assert_eq!(shape.rank(), 4, "images");
        Self { order: Order::ChannelsLast, ..Self::new(backend, slice, shape) }
    }

    /// The elements as they lie.
    pub(super) fn physical(&self) -> (&Slice, Order) {
        (&self.slice, self.order)
    }

    /// The copy in row-major order of elements that lie otherwise, if there is one: whoever writes to them writes there, too.
    pub(super) fn copy_in_rows(&self) -> Option<&Slice> {
        self.rows.get()
    }

    /// An array that brings other elements along, for the back end's own use.
    pub(super) fn with(self, beside: Slice) -> Self {
        Self { beside: Some(beside), ..self }
    }

    /// The elements that it brings along.
    pub(super) fn beside(&self) -> Option<&Slice> {
        self.beside.as_ref()
    }

    /// The elements in row-major order, to be read.
    ///
    /// # Errors
    /// If they lie otherwise and there is no memory for a copy.
    pub fn slice(&self) -> Result<&Slice> {
        if self.order == Order::RowMajor {
            return Ok(&self.slice);
        }
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let (batch, channels, height, width) = self.shape.dims4()?;
        let dims = [batch, height, width, channels];
        let rows = kernels::permute(self.backend.gpu(), &self.slice, &dims, &[0, 3, 1, 2])?;
        Ok(self.rows.get_or_init(|| rows))
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
        let slice = self.slice()?.view(start..start + shape.elem_count())?;
        Ok(self.backend.array(slice, shape.clone()))
    }
}
