//! Buffers that the communicator allocates. On one host they are in memory that all ranks map.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::Communicator;
use crate::buffer::{FlatBuffer, SliceMut, slice_mut};
use crate::dtype::{DType, Element};
use crate::error::{BoxError, CommError, Result};
use crate::shared::Region;

/// A buffer of the same length on every rank, made by [`Communicator::alloc`].
///
/// On one host (Linux) it is in memory that all ranks map. All-reduce, reduce-scatter and all-gather of its chunks then run in
/// place: each rank reduces its part directly from and into the other buffers. Elsewhere it is plain memory
/// ([`SharedBuffer::is_shared`] tells). Between operations only its owner can access it.
#[derive(Debug)]
pub struct SharedBuffer<T> {
    storage: Storage<T>,
    len: usize,
}

#[derive(Debug)]
enum Storage<T> {
    Region(Region, PhantomData<T>),
    Plain(Vec<T>),
}

impl<T: Element> SharedBuffer<T> {
    /// True if other ranks reduce into it without a copy.
    pub fn is_shared(&self) -> bool {
        matches!(self.storage, Storage::Region(..))
    }
}

impl<T: Element> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.storage {
            Storage::Region(region, _) => region.slice(self.len),
            Storage::Plain(values) => values,
        }
    }
}

impl<T: Element> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.storage {
            Storage::Region(region, _) => region.slice_mut(self.len),
            Storage::Plain(values) => values,
        }
    }
}

impl<T: Element> FlatBuffer for SharedBuffer<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn len(&self) -> usize {
        self.len
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        f(slice_mut(self));
        Ok(())
    }

    fn region(&self) -> Option<&Region> {
        match &self.storage {
            Storage::Region(region, _) => Some(region),
            Storage::Plain(_) => None,
        }
    }

    /// After a failure other ranks may still write into the shared memory, so it must not be read any more.
    fn withdraw(&mut self) {
        if self.is_shared() {
            self.storage = Storage::Plain(vec![T::zeroed(); self.len]);
        }
    }
}

impl Communicator {
    /// Returns a buffer of `len` zeros on every rank. Every rank calls this with the same length.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if lengths differ, [`CommError::Argument`] if there is no memory; otherwise the error of the world.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SharedBuffer<T>> {
        let too_large = || CommError::Argument {
            operation: "alloc",
            problem: format!("there is no memory for {len} elements of {}", T::DTYPE.name()),
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(too_large)?;
        let storage = match self.inline(|engine, _| engine.alloc(bytes))? {
            Some(region) => Storage::Region(region, PhantomData),
            None => {
                let mut zeros = Vec::new();
                zeros.try_reserve_exact(len).map_err(|_| too_large())?;
                zeros.resize(len, T::zeroed());
                Storage::Plain(zeros)
            }
        };
        Ok(SharedBuffer { storage, len })
    }
}
