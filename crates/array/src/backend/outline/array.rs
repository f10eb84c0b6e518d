//! Arrays without numbers.

use std::sync::Arc;

use candle_core::{DType, Shape, Tensor};

use super::Outlines;
use super::accounts::OutlineMemory;
use crate::backend::{Array, ArrayBackend, DeviceArray};
use crate::{ArrayError, Result};

/// An array of which shape, type and memory are known.
#[derive(Debug)]
pub struct OutlineArray {
    shape: Shape,
    dtype: DType,
    memory: Arc<OutlineMemory>,
    /// The numbers, if they were copied from the host and not changed.
    numbers: Option<Tensor>,
    backend: Outlines,
}

impl OutlineArray {
    pub(super) fn new(backend: Outlines, memory: Arc<OutlineMemory>, shape: Shape, dtype: DType) -> Self {
        Self { shape, dtype, memory, numbers: None, backend }
    }

    /// Returns the array with numbers of the host.
    pub(super) fn with_numbers(self, numbers: Option<Tensor>) -> Self {
        Self { numbers, ..self }
    }

    /// The numbers, if they are known.
    pub(super) fn numbers(&self) -> Option<&Tensor> {
        self.numbers.as_ref().filter(|_| !self.memory.is_written())
    }

    /// Notes that the numbers are overwritten, also those of views.
    pub(super) fn write(&self) {
        self.memory.write();
    }

    /// Returns an array of another shape in the same memory.
    pub(super) fn in_same_memory(&self, shape: Shape, numbers: Option<Tensor>) -> Array {
        let view = Self::new(self.backend.clone(), self.memory.clone(), shape, self.dtype);
        Array::of_device(view.with_numbers(numbers))
    }
}

impl DeviceArray for OutlineArray {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn backend(&self) -> &dyn ArrayBackend {
        &self.backend
    }

    fn view(&self, start: usize, shape: &Shape) -> Result<Array> {
        let (end, len) = (start + shape.elem_count(), self.shape.elem_count());
        if end > len {
            return Err(ArrayError::shape("view", format!("elements {start}..{end} of {len}")));
        }
        let part = |numbers: &Tensor| {
            numbers.flatten_all()?.narrow(0, start, shape.elem_count())?.reshape(shape.clone())
        };
        let numbers = self.numbers().map(part).transpose()?;
        Ok(self.in_same_memory(shape.clone(), numbers))
    }

    fn storage_id(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.memory).addr())
    }
}
