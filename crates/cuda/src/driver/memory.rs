//! Device memory: allocated, set, copied, and freed in the order of a stream.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

use super::failed;
use crate::Result;

/// What the driver answers when there is no more memory.
const OUT_OF_MEMORY: sys::CUresult = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Device memory. It is freed in the order of the computing stream.
#[derive(Debug)]
pub(crate) struct Allocation {
    address: u64,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Allocation {
    /// Memory of unspecified content, in the order of `allocating`, to be freed in that of `stream`; nothing if there is not so
    /// much.
    pub(crate) fn new(
        stream: &Arc<CudaStream>,
        allocating: &CudaStream,
        bytes: usize,
    ) -> Result<Option<Self>> {
        const ACTION: &str = "allocate device memory";
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // A slice of nothing has an address all the same.
        let asked = bytes.max(1);
        // SAFETY: both streams are alive and of one device, and nobody reads the memory as a type of which not all bits are values.
        match unsafe { result::malloc_async(allocating.cu_stream(), asked) } {
            Ok(address) => Ok(Some(Self { address, bytes, stream: stream.clone() })),
            Err(error) if error.0 == OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(failed(ACTION)(error)),
        }
    }

    /// The stream in whose order it is freed.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of byte `start`, of which `bytes` follow.
    pub(crate) fn address(&self, range: &Range<usize>) -> u64 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.address + range.start as u64
    }

    /// Sets bytes to zero.
    pub(crate) fn zero(&self, range: &Range<usize>, stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "set device memory to zero";
        if range.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory; zeros are values of every type of elements.
        unsafe { result::memset_d8_async(self.address(range), 0, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies bytes of `from` here, as many as `range` has.
    pub(crate) fn copy(
        &self,
        range: &Range<usize>,
        from: &Self,
        start: usize,
        stream: &CudaStream,
    ) -> Result<()> {
        const ACTION: &str = "copy device memory";
        if range.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        let source = from.address(&(start..start + range.len()));
        // SAFETY: both ranges are inside of memory that is alive, and as long.
        unsafe { result::memcpy_dtod_async(self.address(range), source, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies bytes of the host here, and waits until they were read.
    pub(crate) fn upload(&self, range: &Range<usize>, from: &[u8], stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "copy to the device";
        assert_eq!(range.len(), from.len(), "bytes of both sides");
        if from.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory, and `from` is borrowed until the stream is done: the driver may read memory
        // of the host after the call, be it page-locked or not.
        unsafe { result::memcpy_htod_async(self.address(range), from, stream.cu_stream()) }
            .map_err(failed(ACTION))?;
        stream.synchronize().map_err(failed(ACTION))
    }

    /// Copies bytes to the host, and waits for them.
    pub(crate) fn download(&self, range: &Range<usize>, to: &mut [u8], stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "copy to the host";
        assert_eq!(range.len(), to.len(), "bytes of both sides");
        if to.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory, and `to` is borrowed until the stream is done.
        unsafe { result::memcpy_dtoh_async(to, self.address(range), stream.cu_stream()) }
            .map_err(failed(ACTION))?;
        stream.synchronize().map_err(failed(ACTION))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: the address came from `malloc_async`, and nobody has it any more. Work on it that was issued before runs
        // before: on this stream by its order, on others because whoever counted it let this stream wait (`memory::block`).
        context.record_err(unsafe { result::free_async(self.address, self.stream.cu_stream()) });
    }
}
