//! Allocations that are counted, and know which streams use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::accounts::Kind;
use super::pool::Pool;
use crate::Result;
use crate::device::{Device, Stream};
use crate::driver::Allocation;

/// Memory, and when streams other than the computing one have last been given work that uses it.
#[derive(Debug)]
pub(super) struct Tracked {
    memory: Arc<Allocation>,
    used: [AtomicU64; Stream::COUNT],
    /// Loans of it that somebody has.
    loans: AtomicUsize,
    device: Device,
}

impl Tracked {
    pub(super) fn new(memory: Allocation, device: Device) -> Self {
        Self { memory: Arc::new(memory), used: Default::default(), loans: AtomicUsize::new(0), device }
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Loans of it that somebody has.
    pub(super) fn loans(&self) -> usize {
        self.loans.load(Ordering::Acquire)
    }

    /// Lets the computing stream wait for whoever uses the memory, unless it has.
    pub(super) fn settle(&self) -> Result<()> {
        for stream in [Stream::Communication, Stream::Copies] {
            let time = self.used[stream as usize].load(Ordering::Acquire);
            self.device.wait_until(Stream::Compute, stream, time)?;
        }
        Ok(())
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // Another stream may still use it; memory that is lost is better than memory of somebody else that changes.
            std::mem::forget(self.memory.clone());
        }
    }
}

/// An allocation that is counted, or while a graph is captured a loan of the memory that is kept for it.
#[derive(Debug)]
pub(crate) struct Block {
    tracked: Arc<Tracked>,
    /// When it was allocated, in the time of the computing stream.
    born: u64,
    kind: Kind,
    /// The capture that it was lent by.
    lender: Option<u64>,
    pool: Pool,
}

impl Block {
    /// Memory that was just allocated, which is counted from now on.
    pub(super) fn new(tracked: Arc<Tracked>, kind: Kind, pool: &Pool) -> Self {
        pool.accounts().add(kind, tracked.bytes());
        let born = pool.device().count_allocation();
        Self { tracked, born, kind, lender: None, pool: pool.clone() }
    }

    /// The memory of a block that is kept, for as long as somebody has it.
    pub(super) fn lent(tracked: Arc<Tracked>, kind: Kind, capture: u64, pool: &Pool) -> Self {
        let born = pool.device().count_allocation();
        tracked.loans.fetch_add(1, Ordering::AcqRel);
        Self { tracked, born, kind, lender: Some(capture), pool: pool.clone() }
    }

    pub(super) fn tracked(&self) -> &Arc<Tracked> {
        &self.tracked
    }

    /// The memory itself.
    pub(crate) fn memory(&self) -> &Allocation {
        &self.tracked.memory
    }

    /// A handle of the memory, for whoever has the block, too.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.tracked.memory
    }

    pub(super) fn device(&self) -> &Device {
        self.pool.device()
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn lender(&self) -> Option<u64> {
        self.lender
    }

    /// Before a stream is given work that uses it: the stream waits for the allocation, unless it has.
    pub(super) fn enter(&self, stream: Stream) -> Result<()> {
        self.device().wait_until(stream, Stream::Compute, self.born)
    }

    /// A stream was given work that uses it, and is at `time` since.
    pub(super) fn used(&self, stream: Stream, time: u64) {
        if stream == Stream::Compute {
            return;
        }
        self.tracked.used[stream as usize].fetch_max(time, Ordering::AcqRel);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.lender {
            None => self.pool.accounts().remove(self.kind, self.tracked.bytes()),
            Some(capture) => {
                self.tracked.loans.fetch_sub(1, Ordering::AcqRel);
                self.pool.give_back(capture, &self.tracked);
            }
        }
        // Nothing is freed while a graph is captured: every launch would free it again.
        self.pool.device().defer(|| self.tracked.clone());
    }
}
