//! Memory that ranks share, where the system has none: types without values.

use crate::algorithms::Group;
use crate::engine::{Native, Tag};
use crate::error::Result;
use crate::world::Host;

/// Memory of a host.
pub(crate) struct HostMemory {
    pub(crate) group: Group,
    never: std::convert::Infallible,
}

impl HostMemory {
    pub(crate) fn in_background(&mut self, _: bool) {
        match self.never {}
    }

    pub(crate) fn begin(&self, _: u64, _: Tag) {
        match self.never {}
    }
}

/// A buffer in memory that all ranks map.
#[derive(Debug, Clone)]
pub enum Region {}

impl Region {
    pub(crate) fn slice<T>(&self, _: usize) -> &[T] {
        match *self {}
    }

    pub(crate) fn slice_mut<T>(&mut self, _: usize) -> &mut [T] {
        match *self {}
    }
}

pub(crate) fn of_threads(world: usize) -> Vec<Option<HostMemory>> {
    (0..world).map(|_| None).collect()
}

pub(crate) fn agree(native: &mut Native, host: &Host, _: bool) -> Result<()> {
    crate::world::number_hosts(native, host).map(|_| ())
}

pub(crate) fn alloc(_: &mut Native, _: usize) -> Result<Option<Region>> {
    Ok(None)
}
