//! Where device memory comes from.
//!
//! The driver's own pool gives it out in the order of the computing stream, and keeps what it was given back: its release
//! threshold is at the maximum, since with the default of 0 memory would go back to the system at every synchronisation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::accounts::{Accounts, Held, Kind, current};
use super::block::{Block, Tracked};
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
    /// What the graph that is captured has.
    reserve: Mutex<Option<Reserve>>,
    device: Device,
}

impl Pool {
    /// The memory of a device.
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

    /// Keeps what is allocated from now on by the thread that captures, for the graph.
    pub(crate) fn begin_capture(&self, capture: u64) {
        *self.reserve() = Some(Reserve::new(capture));
    }

    /// What was allocated since, whether somebody has it still or not.
    pub(crate) fn end_capture(&self) -> Vec<Arc<Block>> {
        let reserve = self.reserve().take();
        reserve.map(Reserve::into_owned).unwrap_or_default()
    }

    /// Memory that was lent by a capture, and that nobody has any more: the capture uses it again.
    pub(super) fn give_back(&self, capture: u64, tracked: &Arc<Tracked>) {
        // After the capture, and on other threads, it stays with the graph until that goes.
        if self.device().capture() == Some(capture)
            && tracked.settle().is_ok()
            && let Some(reserve) = self.reserve().as_mut().filter(|reserve| reserve.capture == capture)
        {
            reserve.give_back(tracked);
        }
    }

    /// Elements of unspecified value, for whoever overwrites all of them before anybody reads one. They count as what
    /// [`counted_as`](super::counted_as) says.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] with what is held.
    pub fn unwritten(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        let kind = current();
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            GpuError::argument("allocate", format!("{len} elements of {dtype} are too many"))
        })?;
        let block = self.block(bytes, kind)?.ok_or_else(|| GpuError::OutOfMemory {
            bytes,
            kind: kind.name(),
            held: self.held().to_string(),
        })?;
        Ok(Slice::whole(Arc::new(block), dtype, len))
    }

    /// Memory for a slice; none if there is not so much.
    fn block(&self, bytes: usize, kind: Kind) -> Result<Option<Block>> {
        let capture = self.device().capture();
        if let Some(capture) = capture
            && let Some(tracked) = self.reserve().as_mut().and_then(|reserve| reserve.take(bytes))
        {
            return Ok(Some(Block::lent(tracked, kind, capture, self)));
        }
        let (stream, allocating) = (self.device().stream(Stream::Compute), self.device().allocating()?);
        let Some(memory) = Allocation::new(stream, allocating, bytes)? else { return Ok(None) };
        let block = Block::new(Arc::new(Tracked::new(memory, self.device().clone())), kind, self);
        let Some(capture) = capture else { return Ok(Some(block)) };
        let lent = Block::lent(block.tracked().clone(), kind, capture, self);
        if let Some(reserve) = self.reserve().as_mut() {
            reserve.own(block);
        }
        Ok(Some(lent))
    }

    /// Bytes that the driver's pool has of the system, in use or not.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn reserved(&self) -> Result<u64> {
        driver::reserved(self.device().context())
    }

    /// Waits until everything that was issued is done, and gives the system back what nobody uses, down to `keep` bytes.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] while a graph is captured.
    pub fn trim(&self, keep: u64) -> Result<()> {
        self.device().synchronize()?;
        driver::trim(self.device().context(), keep)
    }

    /// What is held, and was.
    pub fn held(&self) -> Held {
        self.accounts().held()
    }
}
