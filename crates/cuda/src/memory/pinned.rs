//! Page-locked memory of the host: copied to and from a device while the host goes on.

use std::marker::PhantomData;
use std::sync::Arc;

use super::slice::Slice;
use crate::device::{Device, Stream};
use crate::driver::{HostMemory, Transfer, failed};
use crate::{Element, GpuError, Result};

/// Elements in memory of the host that the system does not move, so that a device reads and writes them by itself.
#[derive(Debug)]
pub struct Pinned<T> {
    memory: Arc<HostMemory>,
    len: usize,
    elements: PhantomData<T>,
}

/// A copy to the device that may be under way, with the memory that it reads.
#[derive(Debug)]
pub struct Leaving<T>(Transfer, usize, PhantomData<T>);

/// A copy to the host that may be under way, with the memory that it writes.
#[derive(Debug)]
pub struct Arriving<T>(Transfer, usize, PhantomData<T>);

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
    /// If there are fewer, or the driver fails.
    pub fn send(self, to: &Slice, stream: Stream) -> Result<Leaving<T>> {
        self.fits(to)?;
        let (len, (memory, range)) = (self.len, to.place());
        let transfer = Transfer::upload(memory, &range, self.into_memory(), to.device().stream(stream))?;
        Ok(Leaving(transfer, len, PhantomData))
    }

    /// Begins to copy a slice to the first elements, on a stream.
    ///
    /// # Errors
    /// If there are fewer, or the driver fails.
    pub fn receive(self, from: &Slice, stream: Stream) -> Result<Arriving<T>> {
        self.fits(from)?;
        let (len, (memory, range)) = (self.len, from.place());
        let transfer = Transfer::download(memory, &range, self.into_memory(), from.device().stream(stream))?;
        Ok(Arriving(transfer, len, PhantomData))
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

fn back<T>(transfer: Transfer, len: usize) -> Result<Pinned<T>> {
    Ok(Pinned { memory: Arc::new(transfer.finish()?), len, elements: PhantomData })
}

impl<T: Element> Leaving<T> {
    /// What is issued on `stream` from now on begins after this copy.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn before(&self, device: &Device, stream: Stream) -> Result<()> {
        device.stream(stream).wait(self.0.event()).map_err(failed("let a stream wait"))
    }

    /// Waits for the copy, and gives the memory back for the next.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        back(self.0, self.1)
    }
}

impl<T: Element> Arriving<T> {
    /// Whether it has arrived.
    ///
    /// # Errors
    /// If it failed.
    pub fn is_here(&self) -> Result<bool> {
        self.0.is_done()
    }

    /// Waits for the elements.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn finish(self) -> Result<Pinned<T>> {
        back(self.0, self.1)
    }
}
