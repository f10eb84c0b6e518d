//! Device memory as cudarc's own type, for libraries that take that.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

use super::memory::Allocation;

/// Bytes of an allocation as a slice of cudarc's. It frees nothing.
#[derive(Debug)]
pub(crate) struct Borrowed {
    /// There until it is dropped.
    bytes: Option<CudaSlice<u8>>,
    memory: Arc<Allocation>,
}

impl Borrowed {
    /// Bytes that belong to the stream in whose order they are freed.
    pub(crate) fn new(memory: &Arc<Allocation>, range: &Range<usize>) -> Self {
        // SAFETY: the range is inside of memory that is alive as long as this, and any bits are bytes. The slice is never dropped,
        // which would free them.
        let bytes = unsafe { memory.stream().upgrade_device_ptr(memory.address(range), range.len()) };
        Self { bytes: Some(bytes), memory: memory.clone() }
    }

    /// The bytes, to be read and written on any stream that waits as it must.
    pub(crate) fn bytes(&mut self) -> CudaViewMut<'_, u8> {
        self.bytes.as_mut().expect("it is taken only when dropped").as_view_mut()
    }

    /// The stream in whose order they are freed.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        self.memory.stream()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            // Who owns the memory frees it.
            let _ = bytes.leak();
        }
    }
}
