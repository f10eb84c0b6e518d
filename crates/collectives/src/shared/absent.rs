//! Shared memory on systems without it: a type without values.

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
