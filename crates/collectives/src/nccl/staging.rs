//! Device memory for host buffers.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};

/// Memory grows in steps of this many bytes, so that buffers of similar sizes share it.
const STEP: usize = 2 << 20;

/// Memory that is kept between operations.
#[derive(Default)]
pub(super) struct Staging(Option<CudaSlice<u8>>);

impl Staging {
    /// Returns memory of at least `len` bytes that begins with `pieces`, one after the other.
    pub(super) fn load(
        &mut self,
        stream: &Arc<CudaStream>,
        bytes: usize,
        pieces: &[&[u8]],
    ) -> Result<CudaSlice<u8>, DriverError> {
        let kept = self.0.take().filter(|memory| memory.len() >= bytes);
        let mut memory = match kept {
            Some(memory) => memory,
            None => stream.alloc_zeros(bytes.max(1).next_multiple_of(STEP))?,
        };
        let mut at = 0;
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            stream.memcpy_htod(*piece, &mut memory.slice_mut(at..at + piece.len()))?;
            at += piece.len();
        }
        Ok(memory)
    }

    /// Copies bytes back to the host after the work on `stream`, and keeps the memory.
    pub(super) fn unload(
        &mut self,
        stream: &Arc<CudaStream>,
        memory: CudaSlice<u8>,
        range: Range<usize>,
        into: &mut [u8],
    ) -> Result<(), DriverError> {
        if !range.is_empty() {
            stream.memcpy_dtoh(&memory.slice(range), into)?;
            stream.synchronize()?;
        }
        self.0 = Some(memory);
        Ok(())
    }
}
