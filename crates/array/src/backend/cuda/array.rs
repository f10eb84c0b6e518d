//! Arrays in a GPU's memory.

use std::sync::OnceLock;

use candle_core::{DType, Shape};
use phalanx_cuda::{Slice, kernels};

use super::{Cuda, dtype_of};
use crate::Result;
use crate::backend::{Array, ArrayBackend, DeviceArray};

/// The memory order of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Row-major order of the shape.
    RowMajor,
    /// The order N, H, W, C for a shape [N, C, H, W].
    ChannelsLast,
}

/// An array in a GPU's memory: elements under a shape.
#[derive(Debug)]
pub struct CudaArray {
    slice: Slice,
    order: Order,
    /// A cached copy in row-major order.
    rows: OnceLock<Slice>,
    shape: Shape,
    backend: Cuda,
}

impl CudaArray {
    pub(super) fn new(backend: Cuda, slice: Slice, shape: Shape) -> Self {
        debug_assert_eq!(slice.len(), shape.elem_count(), "elements and shape");
        Self { slice, order: Order::RowMajor, rows: OnceLock::new(), shape, backend }
    }

    /// Makes an array of shape [N, C, H, W] from elements in the order N, H, W, C.
    pub(super) fn channels_last(backend: Cuda, slice: Slice, shape: Shape) -> Self {
        debug_assert_eq!(shape.rank(), 4, "images");
        Self { order: Order::ChannelsLast, ..Self::new(backend, slice, shape) }
    }

    /// The elements in memory order, and that order.
    pub(super) fn physical(&self) -> (&Slice, Order) {
        (&self.slice, self.order)
    }

    /// The cached row-major copy of elements in another order. Writers must update both.
    pub(super) fn copy_in_rows(&self) -> Option<&Slice> {
        self.rows.get()
    }

    /// Returns the elements in row-major order, for reading.
    ///
    /// # Errors
    /// If they are in another order and there is no memory for a copy.
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

    /// The GPU of the array.
    pub fn cuda(&self) -> &Cuda {
        &self.backend
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The size of the last dimension.
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
