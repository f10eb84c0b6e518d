//! Device memory: allocation, fills and copies, and release in the order of a stream.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

use super::failed;
use crate::Result;

/// The driver's error for exhausted memory.
const OUT_OF_MEMORY: sys::CUresult = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Device memory. It is freed in the order of the compute stream.
#[derive(Debug)]
pub(crate) struct Allocation {
    address: u64,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Allocation {
    /// Allocates memory of unspecified content in the order of `allocating`, to be freed in that of `stream`. None if there is
    /// not enough.
    pub(crate) fn new(
        stream: &Arc<CudaStream>,
        allocating: &CudaStream,
        bytes: usize,
    ) -> Result<Option<Self>> {
        const ACTION: &str = "allocate device memory";
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // An empty slice has an address, too.
        let asked = bytes.max(1);
        // SAFETY: both streams are alive and of one device, and the memory is only read as types of which all bits are values.
        match unsafe { result::malloc_async(allocating.cu_stream(), asked) } {
            Ok(address) => Ok(Some(Self { address, bytes, stream: stream.clone() })),
            Err(error) if error.0 == OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(failed(ACTION)(error)),
        }
    }

    /// Returns the stream in whose order it is freed.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte of a range.
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
        // SAFETY: the range is inside of this memory; zeros are values of every element type.
        unsafe { result::memset_d8_async(self.address(range), 0, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies bytes of `from` to a range of this memory.
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
        // SAFETY: both ranges are inside of memory that is alive, and have one length.
        unsafe { result::memcpy_dtod_async(self.address(range), source, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies host bytes to this memory, and waits until they were read.
    pub(crate) fn upload(&self, range: &Range<usize>, from: &[u8], stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "copy to the device";
        assert_eq!(range.len(), from.len(), "bytes of both sides");
        if from.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory, and `from` is borrowed until the stream is done: the driver may read host
        // memory after the call, page-locked or not.
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
        // SAFETY: the address came from `malloc_async`, and this is its last owner. Earlier work on it runs before: on this
        // stream by its order, on others because `memory::block` made this stream wait for them.
        context.record_err(unsafe { result::free_async(self.address, self.stream.cu_stream()) });
    }
}
