//! Slices for libraries that take cudarc's own types.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

use super::slice::Slice;
use crate::Result;
use crate::device::Stream;
use crate::driver::Borrowed;

/// A slice that is handed to a library as cudarc knows memory. The memory is there as long as this.
#[derive(Debug)]
pub struct Lent {
    bytes: Borrowed,
    slice: Slice,
    /// Whose work a library's own comes after, and before.
    stream: Stream,
}

impl Slice {
    /// This slice, for a library. As with every handle, nothing keeps two of them from writing: the order of a stream says who
    /// comes first.
    pub fn lend(&self) -> Lent {
        let block = self.block();
        // Whatever the library issues is out of this crate's sight.
        self.device().keep_in_capture(block);
        Lent {
            bytes: Borrowed::new(block.allocation(), &self.range()),
            slice: self.clone(),
            stream: Stream::Compute,
        }
    }
}

impl Lent {
    /// For a library that uses the slice after and before the work of another stream than the computing one.
    ///
    /// # Errors
    /// If the driver refuses to let that stream wait for the slice's allocation.
    pub fn between(self, stream: Stream) -> Result<Self> {
        self.slice.block().enter(stream)?;
        Ok(Self { stream, ..self })
    }

    /// The slice that was lent.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// What sees to it that whatever the calling thread has given the computing stream is on its way, also if it is recorded: to be
    /// called before a library lets that stream wait.
    pub fn issuing(&self) -> impl Fn() + Send + Sync + 'static {
        let device = self.slice.device().clone();
        move || {
            // What went wrong the end of the recording tells.
            let _ = device.flush();
        }
    }

    /// All bytes of the elements. A library that uses them on a stream of its own makes that wait for [`Lent::compute`] before, and
    /// that wait for its own after.
    pub fn bytes(&mut self) -> CudaViewMut<'_, u8> {
        self.bytes.bytes()
    }

    /// The stream that computes with the memory, or that [`Lent::between`] names. What this thread has given it is on its way, also if
    /// that is recorded; what went wrong with that the run's end tells.
    pub fn compute(&self) -> &Arc<CudaStream> {
        let _ = self.slice.device().flush();
        match self.stream {
            Stream::Compute => self.bytes.stream(),
            other => self.slice.device().stream(other),
        }
    }
}
