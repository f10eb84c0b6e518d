//! The collective operations, each as the messages that one rank sends and receives.
//!
//! One file an algorithm, each among the ranks of a [`Group`], so that hierarchies and grids are made of the others.
//! They need nothing but [`Native::send`] and [`Native::receive`] and know nothing of what is between the ranks; the
//! operations that need no messages are in `shared`. [`Algorithm`] names them, and [`cost`] predicts what each takes.

mod choice;
pub(crate) mod cost;
mod exchange;
pub(crate) mod gathered;
pub(crate) mod grid;
mod group;
pub(crate) mod halving;
pub(crate) mod hierarchical;
pub(crate) mod push_pull;
pub(crate) mod ring;
pub(crate) mod single;
pub(crate) mod tree;

pub use choice::Algorithm;
pub(crate) use group::Group;

use std::ops::Range;

#[cfg(doc)]
use crate::engine::Native;

/// Bytes of a piece: small enough to stay in a core's cache between its arrival and its reduction, large enough
/// that headers and system calls do not count.
pub(crate) const PIECE: usize = 256 << 10;

/// The largest message that a rank accepts without having agreed on its size.
const MAX_MESSAGE: usize = 1 << 32;

/// Elements of chunk `index` when `len` elements are cut into `parts`, sizes within one of each other.
pub(crate) fn chunk(len: usize, parts: usize, index: usize) -> Range<usize> {
    index * len / parts..(index + 1) * len / parts
}

/// `range` in pieces; one empty piece if it is empty, so that ranks still exchange a header.
pub(crate) fn pieces<T>(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / size_of::<T>().max(1)).max(1);
    let count = range.len().div_ceil(step).max(1);
    (0..count).map(move |i| {
        let start = range.start + i * step;
        start..(start + step).min(range.end)
    })
}
