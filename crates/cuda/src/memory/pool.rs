//! The pool of device memory.
//!
//! The driver's pool allocates in the order of the compute stream and keeps freed memory. Its release threshold is at the
//! maximum: with the default of 0, memory would go back to the system at every synchronisation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::accounts::{Accounts, Kind, MemoryUsage, current};
use super::block::{Block, TrackedMemory};
use super::reserve::Reserve;
use super::slice::Slice;
use crate::device::{Device, Stream};
use crate::driver::{self, Allocation};
use crate::{ElementType, GpuError, Result};

/// A device's memory. Clones are handles.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    accounts: Accounts,
    /// The memory of the graph that is captured or replayed.
    reserve: Mutex<Option<Reserve>>,
    device: Device,
}

impl Pool {
    /// Returns the pool of a device.
    pub(crate) fn new(device: Device) -> Self {
        Self(Arc::new(Inner { accounts: Accounts::default(), reserve: Mutex::default(), device }))
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.0.accounts
    }

    pub(super) fn device(&self) -> &Device {
        &self.0.device
    }

    fn reserve(&self) -> MutexGuard<'_, Option<Reserve>> {
        self.0.reserve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the reserve for this thread's allocations during a capture or replay.
    ///
    /// # Errors
    /// [`GpuError::Capture`] if there is one already.
    pub(crate) fn begin_scope(&self, reserve: Reserve) -> Result<()> {
        let mut now = self.reserve();
        if now.is_some() {
            let problem = "the GPU is capturing or replaying already".to_owned();
            return Err(GpuError::Capture { action: "a capture".to_owned(), problem });
        }
        *now = Some(reserve);
        Ok(())
    }

    /// Removes and returns the reserve, with all memory that was allocated, in use or not.
    pub(crate) fn end_scope(&self) -> Option<Reserve> {
        self.reserve().take()
    }

    /// Enters a branch of this thread's replay.
    pub(crate) fn branch(&self, key: u64) {
        if let Some(scope) = self.device().scope()
            && let Some(reserve) = self.reserve().as_mut().filter(|reserve| reserve.scope() == scope)
        {
            reserve.branch(key);
        }
    }

    /// Returns unused memory to its reserve, for reuse.
    pub(super) fn give_back(&self, scope: u64, tracked: &Arc<TrackedMemory>) {
        // After the scope, and on other threads, the memory stays with the reserve until that is dropped.
        if self.device().scope() == Some(scope)
            && tracked.settle().is_ok()
            && let Some(reserve) = self.reserve().as_mut().filter(|reserve| reserve.scope() == scope)
        {
            reserve.give_back(tracked);
        }
    }

    /// Allocates elements of unspecified value, for callers that overwrite all of them before any is read. They count as the kind
    /// of [`counted_as`](super::counted_as).
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] with the bytes in use.
    pub fn unwritten(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        self.allocate(dtype, len, false)
    }

    /// Allocates elements as [`Pool::unwritten`] does. In a replay their memory is not reused, so that it can be written before
    /// any work of the run is done.
    pub(crate) fn dedicated(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        self.allocate(dtype, len, true)
    }

    fn allocate(&self, dtype: ElementType, len: usize, dedicated: bool) -> Result<Slice> {
        let kind = current();
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            GpuError::argument("allocate", format!("{len} elements of {dtype} are too many"))
        })?;
        let block = self.block(bytes, kind, dedicated)?.ok_or_else(|| GpuError::OutOfMemory {
            bytes,
            kind: kind.name(),
            usage: self.usage().to_string(),
        })?;
        Ok(Slice::whole(Arc::new(block), dtype, len))
    }

    /// Allocates memory for a slice. None if there is not enough.
    fn block(&self, bytes: usize, kind: Kind, dedicated: bool) -> Result<Option<Block>> {
        let scope = self.device().scope();
        if let Some(scope) = scope {
            let loose = self.device().is_abandoned();
            let taken = self.reserve().as_mut().map(|reserve| {
                if loose {
                    reserve.loosen();
                }
                reserve.take(bytes, dedicated)
            });
            if let Some(tracked) = self.device().remember_error(taken.unwrap_or(Ok(None)))? {
                // The last user may have dropped it while a stream still uses it.
                tracked.settle()?;
                return Ok(Some(Block::lent(tracked, kind, scope, self)));
            }
        }
        let (stream, allocating) = (self.device().stream(Stream::Compute), self.device().allocating()?);
        let Some(memory) = Allocation::new(stream, allocating, bytes)? else { return Ok(None) };
        let block = Block::new(Arc::new(TrackedMemory::new(memory, self.device().clone())), kind, self);
        let Some(scope) = scope else { return Ok(Some(block)) };
        let lent = Block::lent(block.tracked().clone(), kind, scope, self);
        if let Some(reserve) = self.reserve().as_mut() {
            reserve.own(block, bytes, dedicated);
        }
        Ok(Some(lent))
    }

    /// Returns the bytes that the driver's pool has reserved, in use or not.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn reserved(&self) -> Result<u64> {
        driver::reserved(self.device().context())
    }

    /// Waits until all issued work is done, and releases unused memory to the system, down to `keep` bytes.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] while a graph is captured.
    pub fn trim(&self, keep: u64) -> Result<()> {
        self.device().synchronize()?;
        driver::trim(self.device().context(), keep)
    }

    /// Returns the bytes in use and their maxima.
    pub fn usage(&self) -> MemoryUsage {
        self.accounts().usage()
    }
}
