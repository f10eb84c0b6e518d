//! Page-locked memory of the host, and copies between it and a device that go on while the host does.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};

use super::{Allocation, Kept, failed};
use crate::Result;

/// Page-locked memory of the host, which the device reads and writes while the host goes on.
#[derive(Debug)]
pub(crate) struct HostMemory {
    address: *mut c_void,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it is owned memory of plain bytes; a context may be used from any thread.
unsafe impl Send for HostMemory {}
// SAFETY: shared access only reads.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Memory of zeros.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        const ACTION: &str = "allocate page-locked memory";
        context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: it is filled below before anybody reads it.
        let address = unsafe { result::malloc_host(bytes.max(1), 0) }.map_err(failed(ACTION))?;
        // SAFETY: there are as many bytes at the address, and they are nobody else's.
        unsafe { address.cast::<u8>().write_bytes(0, bytes.max(1)) };
        Ok(Self { address, bytes, context: context.clone() })
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has as many bytes, written when it was made; no transfer has it, as it would own it.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// The bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory has as many bytes, written when it was made; no transfer has it, as it would own it, and it is borrowed
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the address came from `malloc_host`, and no transfer has it.
        self.context.record_err(unsafe { result::free_host(self.address) });
    }
}

/// A copy between a device and page-locked memory that may be under way. It has the latter until it is done, and the former unless
/// [`Transfer::let_go`] says that somebody else sees to that.
#[derive(Debug)]
pub(crate) struct Transfer {
    memory: Option<HostMemory>,
    /// Who has the device's memory.
    owner: Option<Kept>,
    done: CudaEvent,
}

impl Transfer {
    /// Begins to copy the first bytes of `memory` to the device, as many as the range has. `owner` keeps the device's memory.
    pub(crate) fn upload(
        (device, owner): (&Allocation, Kept),
        range: &Range<usize>,
        memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the device";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let from = &memory.bytes()[..range.len()];
            // SAFETY: the range is inside of device memory; the host's is owned by what is returned until it is done.
            unsafe { result::memcpy_htod_async(device.address(range), from, stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        Self::begun(owner, memory, done, stream)
    }

    /// Begins to copy bytes of the device to the first of `memory`. `owner` keeps the device's memory.
    pub(crate) fn download(
        (device, owner): (&Allocation, Kept),
        range: &Range<usize>,
        mut memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the host";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let to = &mut memory.bytes_mut()[..range.len()];
            // SAFETY: the range is inside of device memory; the host's is owned by what is returned until it is done.
            unsafe { result::memcpy_dtoh_async(to, device.address(range), stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        Self::begun(owner, memory, done, stream)
    }

    /// A copy that a stream was just given.
    fn begun(owner: Kept, memory: HostMemory, done: CudaEvent, stream: &CudaStream) -> Result<Self> {
        if let Err(error) = done.record(stream) {
            // Without an event nobody would know when it is done, and it may be under way.
            if stream.synchronize().is_err() {
                std::mem::forget((memory, owner));
            }
            return Err(failed("note the end of a copy")(error));
        }
        Ok(Self { memory: Some(memory), owner: Some(owner), done })
    }

    /// Keeps the device's memory no longer: the order of streams keeps it until the copy is done.
    pub(crate) fn let_go(&mut self) {
        self.owner = None;
    }

    /// Whether it is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.done.try_is_complete().map_err(failed("ask for a copy"))
    }

    /// What a stream that uses the device's memory waits for.
    pub(crate) fn event(&self) -> &CudaEvent {
        &self.done
    }

    /// Waits until it is done, calls `passed` before the device's memory is let go of, and gives the host's memory back.
    pub(crate) fn finish_with(mut self, passed: impl FnOnce()) -> Result<HostMemory> {
        self.done.synchronize().map_err(failed("wait for a copy"))?;
        passed();
        Ok(self.memory.take().expect("it is taken only here and when dropped"))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.memory.is_some() && self.done.synchronize().is_err() {
            // The device may still write there; memory that is lost is better than memory of somebody else that changes.
            std::mem::forget(self.memory.take());
        }
    }
}
