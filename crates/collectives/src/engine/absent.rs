//! What `direct` is where systems have no memory to share: never there, and so never called.

use super::native::Native;
use crate::dtype::Element;
use crate::error::Result;
use crate::reduce::Reduction;
use crate::shared::Region;
use crate::transport::LinkError;

/// An operation that cannot come here: no algorithm resolves to it without shared memory.
macro_rules! never {
    ($($name:ident $(<$t:ident>)? ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Native {
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

impl Native {
    pub(crate) fn lent_reduce_scatter<T: Element>(
        &mut self,
        _: &mut [T],
        _: &mut [T],
        _: Reduction,
    ) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn lent_all_gather<T: Element>(&mut self, _: &mut [T], _: &mut [T]) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn reduce_scatter_on_host<T: Element>(&mut self, _: &mut [T], _: Reduction) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn all_gather_on_host<T: Element>(&mut self, _: &mut [T]) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn reduce_on_host<T: Element>(&mut self, _: &mut [T], _: Reduction) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn broadcast_on_host<T: Element>(&mut self, _: &mut [T]) -> Result<bool> {
        Ok(false)
    }
}
