//! Slices for libraries that take cudarc's types.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

use super::slice::Slice;
use crate::Result;
use crate::device::Stream;
use crate::driver::CudarcBytes;

/// A slice as a library takes it, in cudarc's type. It keeps the memory.
#[derive(Debug)]
pub struct LibrarySlice {
    bytes: CudarcBytes,
    slice: Slice,
    /// The stream that a library's own stream waits for, and that waits for it.
    stream: Stream,
}

impl Slice {
    /// Returns this slice for a library. As with every handle, concurrent writes are not prevented: order them by streams.
    pub fn for_library(&self) -> LibrarySlice {
        let block = self.block();
        // This crate cannot see the work that the library issues.
        self.device().keep_for_graph(block);
        LibrarySlice {
            bytes: CudarcBytes::new(block.allocation(), &self.range()),
            slice: self.clone(),
            stream: Stream::Compute,
        }
    }
}

impl LibrarySlice {
    /// Sets the stream that the library's work is ordered with, in place of the compute stream.
    ///
    /// # Errors
    /// If the driver fails to make that stream wait for the slice's allocation.
    pub fn on_stream(self, stream: Stream) -> Result<Self> {
        self.slice.block().enter(stream)?;
        Ok(Self { stream, ..self })
    }

    /// Returns the slice.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// Returns a function that issues all recorded work of the calling thread. Call it before a library makes the compute stream
    /// wait.
    pub fn flush_hook(&self) -> impl Fn() + Send + Sync + 'static {
        let device = self.slice.device().clone();
        move || {
            // The end of the replay reports errors.
            let _ = device.flush();
        }
    }

    /// Returns the bytes of the elements. A library that uses them on its own stream makes that stream wait for
    /// [`LibrarySlice::compute`] before, and that one wait for its own after.
    pub fn bytes(&mut self) -> CudaViewMut<'_, u8> {
        self.bytes.bytes()
    }

    /// Returns the compute stream, or the one of [`LibrarySlice::on_stream`], after issuing all recorded work of this thread. The
    /// end of the replay reports errors.
    pub fn compute(&self) -> &Arc<CudaStream> {
        let _ = self.slice.device().flush();
        match self.stream {
            Stream::Compute => self.bytes.stream(),
            other => self.slice.device().stream(other),
        }
    }
}
