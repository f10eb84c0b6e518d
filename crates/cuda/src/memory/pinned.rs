//! Page-locked memory of the host: copied to and from a device while the host goes on.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::slice::Slice;
use super::uses::issue_timed;
use crate::device::{Device, Stream};
use crate::driver::{Allocation, HostMemory, Kept, Transfer};
use crate::{Element, GpuError, Result};

/// Elements in memory of the host that the system does not move, so that a device reads and writes them by itself.
#[derive(Debug)]
pub struct Pinned<T> {
    memory: Arc<HostMemory>,
    len: usize,
    elements: PhantomData<T>,
}

/// What begins a copy.
type Begin = fn((&Allocation, Kept), &Range<usize>, HostMemory, &CudaStream) -> Result<Transfer>;

/// A copy that may be under way.
#[derive(Debug)]
struct Begun<T> {
    transfer: Transfer,
    /// Which stream copies, and when that is over in its time.
    stream: Stream,
    time: u64,
    device: Device,
    len: usize,
    elements: PhantomData<T>,
}

/// A copy to the device that may be under way, with the memory that it reads.
#[derive(Debug)]
pub struct Leaving<T>(Begun<T>);

/// A copy to the host that may be under way, with the memory that it writes.
#[derive(Debug)]
pub struct Arriving<T>(Begun<T>);

impl<T: Element> Pinned<T> {
    /// `len` elements of zero.
    ///
    /// # Errors
    /// If the system does not give so much page-locked memory.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        let memory = HostMemory::new(device.context(), len * size_of::<T>())?;
        Ok(Self { memory: Arc::new(memory), len, elements: PhantomData })
    }

    /// The elements.
    pub fn values(&self) -> &[T] {
        bytemuck::cast_slice(self.memory.bytes())
    }

    /// The elements, to be written.
    pub fn values_mut(&mut self) -> &mut [T] {
        let memory = Arc::get_mut(&mut self.memory).expect("nobody else has it: transfers own it");
        bytemuck::cast_slice_mut(memory.bytes_mut())
    }

    fn into_memory(self) -> HostMemory {
        Arc::into_inner(self.memory).expect("nobody else has it: transfers own it")
    }

    /// Begins to copy the first elements to a slice, as many as that has, on a stream.
    ///
    /// # Errors
    /// If there are fewer, or the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn send(self, to: &Slice, stream: Stream) -> Result<Leaving<T>> {
        self.begin(to, stream, Transfer::upload).map(Leaving)
    }

    /// Begins to copy a slice to the first elements, on a stream.
    ///
    /// # Errors
    /// If there are fewer, or the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn receive(self, from: &Slice, stream: Stream) -> Result<Arriving<T>> {
        self.begin(from, stream, Transfer::download).map(Arriving)
    }

    fn begin(self, slice: &Slice, stream: Stream, begin: Begin) -> Result<Begun<T>> {
        self.fits(slice)?;
        let device = slice.device().clone();
        device.refuse_waiting("a copy between a device and page-locked memory", stream)?;
        let (len, block) = (self.len, slice.block());
        let (transfer, time) = issue_timed(&device, stream, "transfer", &[slice], |stream| {
            begin((block.memory(), block.clone()), &slice.range(), self.into_memory(), stream)
        })?;
        Ok(Begun { transfer, stream, time, device, len, elements: PhantomData })
    }

    fn fits(&self, slice: &Slice) -> Result<()> {
        slice.holds::<T>("transfer", slice.len())?;
        if slice.len() <= self.len {
            return Ok(());
        }
        let problem = format!("a slice of {} elements and {} page-locked ones", slice.len(), self.len);
        Err(GpuError::argument("transfer", problem))
    }
}

impl<T> Begun<T> {
    fn finish(self) -> Result<Pinned<T>> {
        let memory = self.transfer.finish_with(|| self.device.passed(self.stream, self.time))?;
        Ok(Pinned { memory: Arc::new(memory), len: self.len, elements: PhantomData })
    }
}

impl<T: Element> Leaving<T> {
    /// What is issued on `stream` of the same device from now on begins after this copy.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] if the stream takes part in a capture.
    pub fn before(&self, stream: Stream) -> Result<()> {
        let Begun { transfer, stream: copies, time, device, .. } = &self.0;
        device.wait_for_event(stream, *copies, *time, transfer.event())
    }

    /// Keeps the slice no longer, whose memory is freed in the order of streams, as that of any other work: a slice that is kept
    /// until the host has looked would be freed later than what the host runs ahead of needs.
    #[must_use]
    pub fn letting_go(mut self) -> Self {
        self.0.transfer.let_go();
        self
    }

    /// Whether the memory was read.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn has_left(&self) -> Result<bool> {
        self.0.transfer.is_done()
    }

    /// Waits for the copy, and gives the memory back for the next.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        self.0.finish()
    }
}

impl<T: Element> Arriving<T> {
    /// Whether it has arrived.
    ///
    /// # Errors
    /// If it failed.
    pub fn is_here(&self) -> Result<bool> {
        self.0.transfer.is_done()
    }

    /// Waits for the elements.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        self.0.finish()
    }
}
