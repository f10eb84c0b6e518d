//! Buffers in GPU memory, without the feature `nccl`: none exist.

use std::convert::Infallible;
use std::marker::PhantomData;

use crate::dtype::DType;

/// A buffer's elements in GPU memory. Without the feature `nccl` it cannot be created.
#[derive(Debug)]
pub struct DeviceMut<'a> {
    never: Infallible,
    memory: PhantomData<&'a mut [u8]>,
}

impl DeviceMut<'_> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self.never {}
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self.never {}
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        match self.never {}
    }

    /// Returns the GPU's number, as the driver counts.
    pub fn gpu(&self) -> usize {
        match self.never {}
    }
}
