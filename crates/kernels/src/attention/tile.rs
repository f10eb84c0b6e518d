//! Tiles of scores.

use std::ops::Range;

use crate::float::Float;
use crate::gemm_call::{View, gemm};

/// Queries of a tile.
pub(super) const QUERIES: usize = 64;

/// Keys of a tile. Its scores fit the second-level cache together with their operands.
pub(super) const KEYS: usize = 256;

/// Returns a row-major matrix.
pub(super) fn plain<T>(data: &[T], cols: usize) -> View<'_, T> {
    View { data, row_stride: cols, col_stride: 1 }
}

/// Returns the transpose of a row-major matrix.
pub(super) fn turned<T>(data: &[T], cols: usize) -> View<'_, T> {
    plain(data, cols).transposed()
}

/// Multiplies matrices whose lengths were checked; `sizes` are `[m, n, k]`.
pub(super) fn product<T: Float>(
    sizes: [usize; 3],
    a: View<'_, T>,
    b: View<'_, T>,
    c: &mut [T],
    accumulate: bool,
) {
    let result = gemm(sizes, a, b, c, sizes[1], accumulate);
    debug_assert!(result.is_ok(), "{result:?}");
}

/// Splits a range in parts of at most `len`.
pub(super) fn parts(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |first| first..(first + len).min(end))
}

/// Returns the part of `seen` within `tile`, counted from the tile's start.
pub(super) fn within(seen: &Range<usize>, tile: &Range<usize>) -> Range<usize> {
    let first = seen.start.clamp(tile.start, tile.end) - tile.start;
    let end = seen.end.clamp(tile.start, tile.end) - tile.start;
    first..end.max(first)
}
