//! Page-locked host memory, which devices copy to and from while the host continues.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::slice::Slice;
use super::uses::issue_timed;
use crate::device::{Device, Stream};
use crate::driver::{Allocation, HostMemory, KeepAlive, Transfer};
use crate::{Element, GpuError, Result};

/// Elements in page-locked host memory.
#[derive(Debug)]
pub struct Pinned<T> {
    memory: Arc<HostMemory>,
    len: usize,
    elements: PhantomData<T>,
}

/// A function that starts a copy.
type StartCopy = fn((&Allocation, KeepAlive), &Range<usize>, HostMemory, &CudaStream) -> Result<Transfer>;

/// A copy that may be pending.
#[derive(Debug)]
struct PendingCopy<T> {
    transfer: Transfer,
    /// The copying stream, and its time after the copy.
    stream: Stream,
    time: u64,
    device: Device,
    len: usize,
    elements: PhantomData<T>,
}

/// A copy to the device that may be pending, with the memory that it reads.
#[derive(Debug)]
pub struct PendingUpload<T>(PendingCopy<T>);

/// A copy to the host that may be pending, with the memory that it writes.
#[derive(Debug)]
pub struct PendingDownload<T>(PendingCopy<T>);

impl<T: Element> Pinned<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// If the system has not enough page-locked memory.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            GpuError::argument("allocate page-locked memory", format!("{len} elements are too many"))
        })?;
        let memory = HostMemory::new(device.context(), bytes)?;
        Ok(Self { memory: Arc::new(memory), len, elements: PhantomData })
    }

    /// Returns the elements.
    pub fn values(&self) -> &[T] {
        bytemuck::cast_slice(self.memory.bytes())
    }

    /// Returns the elements, to be written.
    pub fn values_mut(&mut self) -> &mut [T] {
        let memory = Arc::get_mut(&mut self.memory).expect("no transfer shares it");
        bytemuck::cast_slice_mut(memory.bytes_mut())
    }

    fn into_memory(self) -> HostMemory {
        Arc::into_inner(self.memory).expect("no transfer shares it")
    }

    /// Starts a copy of the first elements to a slice, on a stream.
    ///
    /// # Errors
    /// If the slice is longer, or the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn upload_to(self, to: &Slice, stream: Stream) -> Result<PendingUpload<T>> {
        self.begin(to, stream, Transfer::upload).map(PendingUpload)
    }

    /// Starts a copy of a slice to the first elements, on a stream.
    ///
    /// # Errors
    /// If the slice is longer, or the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn download_from(self, from: &Slice, stream: Stream) -> Result<PendingDownload<T>> {
        self.begin(from, stream, Transfer::download).map(PendingDownload)
    }

    fn begin(self, slice: &Slice, stream: Stream, begin: StartCopy) -> Result<PendingCopy<T>> {
        self.fits(slice)?;
        let device = slice.device().clone();
        device.refuse_host_wait("a copy between a device and page-locked memory", stream)?;
        let (len, block) = (self.len, slice.block());
        let (transfer, time) = issue_timed(&device, stream, "transfer", &[slice], |stream| {
            begin((block.memory(), block.clone()), &slice.range(), self.into_memory(), stream)
        })?;
        Ok(PendingCopy { transfer, stream, time, device, len, elements: PhantomData })
    }

    fn fits(&self, slice: &Slice) -> Result<()> {
        slice.holds::<T>("transfer", slice.len())?;
        if slice.len() <= self.len {
            return Ok(());
        }
        let problem = format!("a slice of {} elements, and {} page-locked ones", slice.len(), self.len);
        Err(GpuError::argument("transfer", problem))
    }
}

impl<T> PendingCopy<T> {
    fn finish(self) -> Result<Pinned<T>> {
        let memory = self.transfer.finish_with(|| self.device.passed(self.stream, self.time))?;
        Ok(Pinned { memory: Arc::new(memory), len: self.len, elements: PhantomData })
    }
}

impl<T: Element> PendingUpload<T> {
    /// Makes all later work of `stream` wait for this copy.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn make_wait(&self, stream: Stream) -> Result<()> {
        let PendingCopy { transfer, stream: copies, time, device, .. } = &self.0;
        device.wait_for_event(stream, *copies, *time, transfer.event())
    }

    /// Releases the slice before the copy is finished: its memory is freed in the order of the streams. A slice that is kept
    /// until [`PendingUpload::finish`] would be freed too late for a host that runs ahead.
    #[must_use]
    pub fn release_slice(mut self) -> Self {
        self.0.transfer.release_device();
        self
    }

    /// Returns true if the memory was read.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn is_done(&self) -> Result<bool> {
        self.0.transfer.is_done()
    }

    /// Waits for the copy, and returns the page-locked memory.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        self.0.finish()
    }
}

impl<T: Element> PendingDownload<T> {
    /// Returns true if the copy is complete.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn is_done(&self) -> Result<bool> {
        self.0.transfer.is_done()
    }

    /// Waits for the copy, and returns the elements.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        self.0.finish()
    }
}
