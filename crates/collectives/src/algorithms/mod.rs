//! The collective operations, each as the messages that one rank sends and receives.
//!
//! [`ring`] has those in which all ranks do alike; they move the least bytes and suit large buffers. [`rooted`] has
//! those in which one rank is special. Other algorithms (trees and recursive doubling for small buffers,
//! hierarchies of hosts) belong beside them: an algorithm needs nothing but [`Engine::send`] and
//! [`Engine::receive`].

mod ring;
mod rooted;

use std::ops::Range;

use crate::engine::Engine;

/// Bytes of a piece: small enough to stay in a core's cache between its arrival and its reduction, large enough
/// that headers and system calls do not count.
const PIECE: usize = 256 << 10;

/// The largest message that a rank accepts without having agreed on its size.
const MAX_MESSAGE: usize = 1 << 32;

/// Elements of chunk `index` when `len` elements are cut into `parts`, sizes within one of each other.
pub(crate) fn chunk(len: usize, parts: usize, index: usize) -> Range<usize> {
    index * len / parts..(index + 1) * len / parts
}

/// `range` in pieces; one empty piece if it is empty, so that ranks still exchange a header.
fn pieces<T>(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / size_of::<T>().max(1)).max(1);
    let count = range.len().div_ceil(step).max(1);
    (0..count).map(move |i| {
        let start = range.start + i * step;
        start..(start + step).min(range.end)
    })
}

impl Engine {
    /// The neighbour that this rank sends to.
    fn next(&self) -> usize {
        (self.rank + 1) % self.world_size
    }

    /// The neighbour that this rank receives from.
    fn previous(&self) -> usize {
        (self.rank + self.world_size - 1) % self.world_size
    }

    /// The rank `steps` places behind this one.
    fn behind(&self, steps: usize) -> usize {
        (self.rank + self.world_size - steps % self.world_size) % self.world_size
    }
}
