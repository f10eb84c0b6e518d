//! Partition of buffers: a chunk for each rank, and pieces that go one after the other.

use std::ops::Range;

/// Bytes of a piece: small enough to stay in a core's cache between arrival and reduction, large enough that headers and system
/// calls do not matter.
pub(crate) const PIECE: usize = 256 << 10;

/// Returns the elements of chunk `index` when `len` elements are cut into `parts` chunks whose sizes differ by at most one.
pub(crate) fn chunk(len: usize, parts: usize, index: usize) -> Range<usize> {
    index * len / parts..(index + 1) * len / parts
}

/// Returns contiguous ranges of the given lengths.
pub(crate) fn in_a_row(lengths: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |len: usize| {
        let start = end;
        end += len;
        start..end
    };
    lengths.into_iter().map(range).collect()
}

/// Returns `range` in pieces; one empty piece if it is empty, so that ranks still exchange a header.
pub(crate) fn pieces<T>(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / size_of::<T>().max(1)).max(1);
    let count = range.len().div_ceil(step).max(1);
    (0..count).map(move |i| {
        let start = range.start + i * step;
        start..(start + step).min(range.end)
    })
}
