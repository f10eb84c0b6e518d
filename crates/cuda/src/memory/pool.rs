//! Where device memory comes from.
//!
//! The driver's own pool gives it out in the order of the computing stream, and keeps what it was given back: its release
//! threshold is at the maximum, since with the default of 0 memory would go back to the system at every synchronisation.

use std::sync::Arc;

use super::accounts::{Accounts, Held, Kind, current};
use super::slice::Slice;
use crate::device::{Device, Stream};
use crate::driver::Allocation;
use crate::{ElementType, GpuError, Result};

/// A device's memory. Clones are handles.
#[derive(Debug, Clone)]
pub struct Pool {
    device: Device,
    accounts: Arc<Accounts>,
}

/// An allocation that is counted.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) memory: Arc<Allocation>,
    kind: Kind,
    pool: Pool,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.accounts.remove(self.kind, self.memory.bytes());
    }
}

impl Block {
    pub(super) fn device(&self) -> &Device {
        &self.pool.device
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }
}

impl Pool {
    /// The memory of a device.
    pub(crate) fn new(device: Device) -> Self {
        Self { device, accounts: Arc::default() }
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
        let Some(memory) = Allocation::new(self.device.stream(Stream::Compute), bytes)? else {
            return Err(GpuError::OutOfMemory { bytes, kind: kind.name(), held: self.held().to_string() });
        };
        self.accounts.add(kind, bytes);
        let block = Block { memory: Arc::new(memory), kind, pool: self.clone() };
        Ok(Slice::whole(Arc::new(block), dtype, len))
    }

    /// What is held, and was.
    pub fn held(&self) -> Held {
        self.accounts.held()
    }
}
