//! Device memory in cudarc's type, for libraries that take it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

use super::memory::Allocation;

/// Bytes of an allocation as a cudarc slice, which does not free them.
#[derive(Debug)]
pub(crate) struct CudarcBytes {
    /// Present until this is dropped.
    bytes: Option<CudaSlice<u8>>,
    memory: Arc<Allocation>,
}

impl CudarcBytes {
    /// Returns bytes of an allocation, on the stream in whose order they are freed.
    pub(crate) fn new(memory: &Arc<Allocation>, range: &Range<usize>) -> Self {
        // SAFETY: the range is inside of memory that is alive as long as this, and any bits are bytes. The slice is never
        // dropped, which would free the memory.
        let bytes = unsafe { memory.stream().upgrade_device_ptr(memory.address(range), range.len()) };
        Self { bytes: Some(bytes), memory: memory.clone() }
    }

    /// Returns the bytes, to be read and written on any stream with the necessary waits.
    pub(crate) fn bytes(&mut self) -> CudaViewMut<'_, u8> {
        self.bytes.as_mut().expect("taken only by drop").as_view_mut()
    }

    /// Returns the stream in whose order they are freed.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        self.memory.stream()
    }
}

impl Drop for CudarcBytes {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            // The allocation frees the memory.
            let _ = bytes.leak();
        }
    }
}
