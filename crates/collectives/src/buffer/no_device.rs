//! Buffers in the memory of a GPU, where this crate was built without the feature `nccl`: there are none.

use std::convert::Infallible;
use std::marker::PhantomData;

use crate::dtype::DType;

/// A buffer's elements in the memory of a GPU. Without the feature `nccl` there is no way to make one.
#[derive(Debug)]
pub struct DeviceMut<'a> {
    never: Infallible,
    memory: PhantomData<&'a mut [u8]>,
}

impl DeviceMut<'_> {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        match self.never {}
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self.never {}
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        match self.never {}
    }

    /// The GPU's number, as the driver counts.
    pub fn gpu(&self) -> usize {
        match self.never {}
    }
}
