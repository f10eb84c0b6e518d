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

    /// Takes what the thread that captures or replays allocates from now on from a reserve.
    ///
    /// # Errors
    /// [`GpuError::Capture`] if there is one already.
    pub(crate) fn begin_scope(&self, reserve: Reserve) -> Result<()> {
        let mut now = self.reserve();
        if now.is_some() {
            let problem = "the GPU captures or replays already".to_owned();
            return Err(GpuError::Capture { action: "a capture".to_owned(), problem });
        }
        *now = Some(reserve);
        Ok(())
    }

    /// The reserve, with all that was allocated, whether somebody has it still or not.
    pub(crate) fn end_scope(&self) -> Option<Reserve> {
        self.reserve().take()
    }

    /// The run that this thread replays goes on in a branch.
    pub(crate) fn branch(&self, key: u64) {
        if let Some(scope) = self.device().scope()
            && let Some(reserve) = self.reserve().as_mut().filter(|reserve| reserve.scope() == scope)
        {
            reserve.branch(key);
        }
    }

    /// Memory that was lent by a reserve, and that nobody has any more: it is used again.
    pub(super) fn give_back(&self, scope: u64, tracked: &Arc<Tracked>) {
        // Afterwards, and on other threads, it stays with the reserve until that goes.
        if self.device().scope() == Some(scope)
            && tracked.settle().is_ok()
            && let Some(reserve) = self.reserve().as_mut().filter(|reserve| reserve.scope() == scope)
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
        self.allocate(dtype, len, false)
    }

    /// Elements as [`Pool::unwritten`] gives them; in a replay their memory is used for nothing else, so that it can be written
    /// before anything of the run is done.
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
            held: self.held().to_string(),
        })?;
        Ok(Slice::whole(Arc::new(block), dtype, len))
    }

    /// Memory for a slice; none if there is not so much.
    fn block(&self, bytes: usize, kind: Kind, dedicated: bool) -> Result<Option<Block>> {
        let scope = self.device().scope();
        if let Some(scope) = scope {
            let loose = self.device().issues_all();
            let taken = self.reserve().as_mut().map(|reserve| {
                if loose {
                    reserve.loosen();
                }
                reserve.take(bytes, dedicated)
            });
            if let Some(tracked) = self.device().noting(taken.unwrap_or(Ok(None)))? {
                // Whoever had it may have dropped it where nobody waited for what uses it.
                tracked.settle()?;
                return Ok(Some(Block::lent(tracked, kind, scope, self)));
            }
        }
        let (stream, allocating) = (self.device().stream(Stream::Compute), self.device().allocating()?);
        let Some(memory) = Allocation::new(stream, allocating, bytes)? else { return Ok(None) };
        let block = Block::new(Arc::new(Tracked::new(memory, self.device().clone())), kind, self);
        let Some(scope) = scope else { return Ok(Some(block)) };
        let lent = Block::lent(block.tracked().clone(), kind, scope, self);
        if let Some(reserve) = self.reserve().as_mut() {
            reserve.own(block, bytes, dedicated);
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
