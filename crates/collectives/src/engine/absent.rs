//! Operations through shared memory on systems without it. They are never called.

use super::backend::Backend;
use super::hosts::number_hosts;
use super::memory::HostMemory;
use crate::algorithms::Hosts;
use crate::dtype::Element;
use crate::error::Result;
use crate::reduce::Reduction;
use crate::shared::Region;
use crate::waiting::LinkError;

pub(crate) fn of_threads(world: usize) -> Vec<Option<HostMemory>> {
    (0..world).map(|_| None).collect()
}

pub(crate) fn agree(backend: &mut Backend, host: &str, _: bool) -> Result<()> {
    number_hosts(backend, host).map(|_| ())
}

/// An operation that is never called: no algorithm resolves to it without shared memory.
macro_rules! never {
    ($($name:ident $(<$t:ident>)? ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Backend {
            $(pub(crate) fn $name $(<$t: Element>)? (&mut self, $($arg: $type),*) -> Result<$result> {
                $(let _ = $arg;)*
                Err(self.broken(LinkError::Closed(self.rank)))
            })*
        }
    };
}

never! {
    direct_all_reduce<T>(values: &mut [T], reduction: Reduction) -> ();
    direct_reduce_scatter<T>(values: &mut [T], reduction: Reduction) -> ();
    direct_all_gather<T>(values: &mut [T]) -> ();
    direct_reduce<T>(values: &mut [T], reduction: Reduction, root: usize) -> ();
    direct_broadcast<T>(values: &mut [T], root: usize) -> ();
    direct_gather(own: &[u8], root: Option<usize>) -> Vec<Vec<u8>>;
    direct_scatter(parts: &[&[u8]], root: Option<usize>) -> Vec<Vec<u8>>;
    direct_in_place<T>(region: &Region, reduction: Reduction) -> ();
}

impl Backend {
    pub(super) fn alloc_region(&mut self, _: usize) -> Result<Option<Region>> {
        Ok(None)
    }

    pub(crate) fn cross_memory_reduce_scatter<T: Element>(
        &mut self,
        _: &mut [T],
        _: &mut [T],
        _: Reduction,
    ) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn cross_memory_all_gather<T: Element>(&mut self, _: &mut [T], _: &mut [T]) -> Result<bool> {
        Ok(false)
    }
}

impl Hosts for Backend {
    fn rank(&self) -> usize {
        self.rank
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }
}
