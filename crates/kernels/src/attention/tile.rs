//! Tiles of scores.

use std::ops::Range;

use super::packed::{PANEL, Packed, Panels};
use super::product::{Left, Product};
use crate::context::Context;
use crate::float::Float;

/// Queries of a tile.
pub(super) const QUERIES: usize = 64;

/// The most keys of a tile, and the distance between its rows. Its scores fit the second-level cache together with their operands.
pub(super) const KEYS: usize = 4 * PANEL;

/// Splits a range in parts of at most `len`.
pub(super) fn parts(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |first| first..(first + len).min(end))
}

/// Returns the range of keys from the beginning of its first panel on.
pub(super) fn from_panel(range: Range<usize>) -> Range<usize> {
    range.start / PANEL * PANEL..range.end
}

/// Returns the part of `seen` within `tile`, counted from the tile's start.
pub(super) fn within(seen: &Range<usize>, tile: &Range<usize>) -> Range<usize> {
    let first = seen.start.clamp(tile.start, tile.end) - tile.start;
    let end = seen.end.clamp(tile.start, tile.end) - tile.start;
    first..end.max(first)
}

/// Multiplies rows, one after the other, with the positions of a tile.
pub(super) fn scores<T: Float>(
    context: &Context,
    rows: &[T],
    panels: &Panels<'_, T>,
    tile: &Range<usize>,
    to: &mut [T],
) {
    let (depth, count) = (panels.dim(), rows.len() / panels.dim());
    for panel in tile.clone().step_by(PANEL) {
        let a = Left::Rows { data: rows, stride: depth };
        Product { rows: count, width: PANEL, depth, a, b: panels.at(panel), add: false }.run(
            context,
            &mut to[panel - tile.start..],
            KEYS,
        );
    }
}

/// Multiplies the weights of a tile, `count` rows, with the positions of its keys. Sums begin at 0 unless `add`.
pub(super) fn weighted<T: Float>(
    context: &Context,
    weights: &[T],
    count: usize,
    tile: &Range<usize>,
    positions: &Packed<'_, T>,
    add: bool,
    to: &mut [T],
) {
    let width = positions.dim();
    // As many keys at a time as stay in the first-level cache.
    for keys in parts(tile.clone(), PANEL) {
        let a = Left::Rows { data: &weights[keys.start - tile.start..], stride: KEYS };
        let add = add || keys.start > tile.start;
        Product { rows: count, width, depth: keys.len(), a, b: positions.from(keys.start), add }
            .run(context, to, width);
    }
}

/// Adds the weights of a tile, turned, times the rows of its queries, one after the other, to the sums of its keys.
pub(super) fn add_turned<T: Float>(
    context: &Context,
    weights: &[T],
    span: usize,
    rows: &[T],
    dim: usize,
    to: &mut [T],
) {
    let a = Left::Columns { data: weights, stride: KEYS };
    Product { rows: span, width: dim, depth: rows.len() / dim, a, b: rows, add: true }.run(context, to, dim);
}
