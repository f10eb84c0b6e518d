//! Page-locked host memory, and asynchronous copies between it and a device.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};

use super::{Allocation, KeepAlive, failed};
use crate::Result;

/// Page-locked host memory, which the device accesses while the host continues.
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
    /// Allocates zeros.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        const ACTION: &str = "allocate page-locked memory";
        context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: it is filled below before it is read.
        let address = unsafe { result::malloc_host(bytes.max(1), 0) }.map_err(failed(ACTION))?;
        // SAFETY: the address is valid for as many bytes, which are not shared.
        unsafe { address.cast::<u8>().write_bytes(0, bytes.max(1)) };
        Ok(Self { address, bytes, context: context.clone() })
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has as many initialised bytes; no transfer uses it, as a transfer would own it.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// Returns the bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory has as many initialised bytes; no transfer uses it, as a transfer would own it, and it is borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the address came from `malloc_host`, and no transfer uses it.
        self.context.record_err(unsafe { result::free_host(self.address) });
    }
}

/// A copy between a device and page-locked memory that may be pending. It keeps the host memory until it is done, and the device
/// memory unless [`Transfer::release_device`] was called.
#[derive(Debug)]
pub(crate) struct Transfer {
    memory: Option<HostMemory>,
    /// The owner of the device memory.
    owner: Option<KeepAlive>,
    done: CudaEvent,
}

impl Transfer {
    /// Starts a copy of the first bytes of `memory` to a device range. `owner` keeps the device memory.
    pub(crate) fn upload(
        (device, owner): (&Allocation, KeepAlive),
        range: &Range<usize>,
        memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the device";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let from = &memory.bytes()[..range.len()];
            // SAFETY: the range is inside of device memory; the returned transfer owns the host memory until it is done.
            unsafe { result::memcpy_htod_async(device.address(range), from, stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        Self::begun(owner, memory, done, stream)
    }

    /// Starts a copy of a device range to the first bytes of `memory`. `owner` keeps the device memory.
    pub(crate) fn download(
        (device, owner): (&Allocation, KeepAlive),
        range: &Range<usize>,
        mut memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the host";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let to = &mut memory.bytes_mut()[..range.len()];
            // SAFETY: the range is inside of device memory; the returned transfer owns the host memory until it is done.
            unsafe { result::memcpy_dtoh_async(to, device.address(range), stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        Self::begun(owner, memory, done, stream)
    }

    /// Records the end of a copy that a stream was just given.
    fn begun(owner: KeepAlive, memory: HostMemory, done: CudaEvent, stream: &CudaStream) -> Result<Self> {
        if let Err(error) = done.record(stream) {
            // Without an event the end is unknown, and the copy may be pending.
            if stream.synchronize().is_err() {
                std::mem::forget((memory, owner));
            }
            return Err(failed("record the end of a copy")(error));
        }
        Ok(Self { memory: Some(memory), owner: Some(owner), done })
    }

    /// Releases the device memory: the order of streams keeps it until the copy is done.
    pub(crate) fn release_device(&mut self) {
        self.owner = None;
    }

    /// Returns true if the copy is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.done.try_is_complete().map_err(failed("query a copy"))
    }

    /// Returns the event at the end of the copy.
    pub(crate) fn event(&self) -> &CudaEvent {
        &self.done
    }

    /// Waits until the copy is done, calls `passed`, releases the device memory, and returns the host memory.
    pub(crate) fn finish_with(mut self, passed: impl FnOnce()) -> Result<HostMemory> {
        self.done.synchronize().map_err(failed("wait for a copy"))?;
        passed();
        Ok(self.memory.take().expect("taken only here and by drop"))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.memory.is_some() && self.done.synchronize().is_err() {
            // The device may still write there: a leak is better than corrupting another allocation.
            std::mem::forget(self.memory.take());
        }
    }
}
