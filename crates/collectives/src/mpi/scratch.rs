//! Scratch memory for buffers of MPI.

use crate::dtype::Element;

/// The most elements that are copied to scratch memory at a time. The cost of a call of MPI is negligible for that number, and scratch
/// stays smaller than the largest buffers.
pub(super) const COPIED: usize = 16 << 20;

/// Returns `len` elements of scratch memory, which grows if needed.
pub(super) fn typed<T: Element>(scratch: &mut Vec<u64>, len: usize) -> &mut [T] {
    let words = (len * size_of::<T>()).div_ceil(size_of::<u64>());
    if scratch.len() < words {
        scratch.resize(words, 0);
    }
    &mut bytemuck::cast_slice_mut(scratch)[..len]
}
