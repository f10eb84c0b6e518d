//! Counted allocations that know the streams that use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::accounts::Kind;
use super::pool::Pool;
use crate::Result;
use crate::device::{Device, Stream};
use crate::driver::Allocation;

/// Memory with the latest use by each stream other than the compute stream.
#[derive(Debug)]
pub(super) struct TrackedMemory {
    memory: Arc<Allocation>,
    used: [AtomicU64; Stream::COUNT],
    /// The blocks that use the memory now.
    loans: AtomicUsize,
    device: Device,
}

impl TrackedMemory {
    pub(super) fn new(memory: Allocation, device: Device) -> Self {
        Self { memory: Arc::new(memory), used: Default::default(), loans: AtomicUsize::new(0), device }
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the number of blocks that use the memory now.
    pub(super) fn loans(&self) -> usize {
        self.loans.load(Ordering::Acquire)
    }

    /// Makes the compute stream wait for the other streams that use the memory, unless it has.
    pub(super) fn settle(&self) -> Result<()> {
        for stream in [Stream::Communication, Stream::Copies] {
            let time = self.used[stream as usize].load(Ordering::Acquire);
            self.device.wait_until(Stream::Compute, stream, time)?;
        }
        Ok(())
    }
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // Another stream may still use the memory: a leak is better than corrupting another allocation.
            std::mem::forget(self.memory.clone());
        }
    }
}

/// A counted allocation. During a capture or replay: a use of memory that its reserve keeps.
#[derive(Debug)]
pub(crate) struct Block {
    tracked: Arc<TrackedMemory>,
    /// The time of its allocation on the compute stream.
    born: u64,
    kind: Kind,
    /// The capture or replay whose reserve owns the memory.
    scope: Option<u64>,
    pool: Pool,
}

impl Block {
    /// Returns a new allocation, and counts it.
    pub(super) fn new(tracked: Arc<TrackedMemory>, kind: Kind, pool: &Pool) -> Self {
        pool.accounts().add(kind, tracked.bytes());
        let born = pool.device().count_allocation();
        Self { tracked, born, kind, scope: None, pool: pool.clone() }
    }

    /// Returns a use of memory that a reserve keeps.
    pub(super) fn lent(tracked: Arc<TrackedMemory>, kind: Kind, capture: u64, pool: &Pool) -> Self {
        let born = pool.device().count_allocation();
        tracked.loans.fetch_add(1, Ordering::AcqRel);
        Self { tracked, born, kind, scope: Some(capture), pool: pool.clone() }
    }

    pub(super) fn tracked(&self) -> &Arc<TrackedMemory> {
        &self.tracked
    }

    /// Returns the memory.
    pub(crate) fn memory(&self) -> &Allocation {
        &self.tracked.memory
    }

    /// Returns a shared handle of the memory.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.tracked.memory
    }

    pub(super) fn device(&self) -> &Device {
        self.pool.device()
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn scope(&self) -> Option<u64> {
        self.scope
    }

    /// Makes a stream wait for the allocation, unless it has. Called before the stream gets work that uses it.
    pub(super) fn enter(&self, stream: Stream) -> Result<()> {
        self.device().wait_until(stream, Stream::Compute, self.born)
    }

    /// Records that a stream got work that uses the memory, and its time after that.
    pub(super) fn used(&self, stream: Stream, time: u64) {
        if stream == Stream::Compute {
            return;
        }
        self.tracked.used[stream as usize].fetch_max(time, Ordering::AcqRel);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.scope {
            None => self.pool.accounts().remove(self.kind, self.tracked.bytes()),
            Some(capture) => {
                self.tracked.loans.fetch_sub(1, Ordering::AcqRel);
                self.pool.give_back(capture, &self.tracked);
            }
        }
        // No memory is freed during a capture: every launch would free it again.
        self.pool.device().defer(|| self.tracked.clone());
    }
}
