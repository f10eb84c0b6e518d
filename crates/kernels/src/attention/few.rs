//! Tiles of few queries: keys and values are read where they lie.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::operands::Rows;
use super::tile::KEYS;
use crate::context::Context;
use crate::float::Float;
use crate::products::LANES;

/// Multiplies rows, one after the other, with the positions of a tile, which are as wide.
pub(super) fn row_scores<T: Float>(
    context: &Context,
    rows: &[T],
    positions: Rows<'_, T>,
    dim: usize,
    tile: &Range<usize>,
    to: &mut [T],
) {
    let first = tile.start * positions.width;
    let (data, width, count) = (&positions.data[first..], positions.width, tile.len());
    if let (Some(rows), Some(data)) = (T::singles(rows), T::singles(data))
        && dim.is_multiple_of(LANES)
        && let Some(to) = T::singles_mut(to)
    {
        return context.dispatch(Scores { rows, dim, data, width, count, to });
    }
    for (row, to) in rows.chunks_exact(dim).zip(to.chunks_mut(KEYS)) {
        for (position, to) in data.chunks(width).zip(&mut to[..count]) {
            *to = row.iter().zip(position).fold(T::ZERO, |sum, (a, b)| sum + *a * *b);
        }
    }
}

/// Multiplies the weights of a tile, rows of [`KEYS`], with its positions, of `dim` elements. Sums begin at 0 unless `add`.
pub(super) fn weighted_rows<T: Float>(
    context: &Context,
    weights: &[T],
    positions: Rows<'_, T>,
    tile: &Range<usize>,
    add: bool,
    (sums, dim): (&mut [T], usize),
) {
    let first = tile.start * positions.width;
    let (data, width, count) = (&positions.data[first..], positions.width, tile.len());
    if !add {
        sums.fill(T::ZERO);
    }
    if let (Some(weights), Some(data)) = (T::singles(weights), T::singles(data))
        && dim.is_multiple_of(LANES)
        && let Some(sums) = T::singles_mut(sums)
    {
        return context.dispatch(Weighted { weights, dim, data, width, count, sums });
    }
    for (weights, sums) in weights.chunks(KEYS).zip(sums.chunks_exact_mut(dim)) {
        for (position, weight) in data.chunks(width).zip(&weights[..count]) {
            sums.iter_mut().zip(position).for_each(|(sum, value)| *sum += *weight * *value);
        }
    }
}

/// [`row_scores`] of f32.
struct Scores<'a> {
    rows: &'a [f32],
    /// A multiple of [`LANES`].
    dim: usize,
    /// Positions, `width` apart.
    data: &'a [f32],
    width: usize,
    count: usize,
    to: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, dim, data, width, count, to } = self;
        for (row, to) in rows.chunks_exact(dim).zip(to.chunks_mut(KEYS)) {
            let (row, row_rest) = S::as_simd_f32s(row).0.as_chunks::<2>();
            for (position, to) in data.chunks(width).zip(&mut to[..count]) {
                let mut sums = [simd.splat_f32s(0.0); 2];
                let (position, rest) = S::as_simd_f32s(&position[..dim]).0.as_chunks::<2>();
                for (a, b) in row.iter().zip(position) {
                    for i in 0..2 {
                        sums[i] = simd.mul_add_f32s(a[i], b[i], sums[i]);
                    }
                }
                for (a, b) in row_rest.iter().zip(rest) {
                    sums[0] = simd.mul_add_f32s(*a, *b, sums[0]);
                }
                *to = simd.reduce_sum_f32s(simd.add_f32s(sums[0], sums[1]));
            }
        }
    }
}

/// [`weighted_rows`] of f32.
struct Weighted<'a> {
    weights: &'a [f32],
    /// A multiple of [`LANES`].
    dim: usize,
    /// Positions, `width` apart.
    data: &'a [f32],
    width: usize,
    count: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Weighted<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { weights, dim, data, width, count, sums } = self;
        for (weights, sums) in weights.chunks(KEYS).zip(sums.chunks_exact_mut(dim)) {
            let positions = || data.chunks(width).zip(&weights[..count]);
            let (parts, rest) = S::as_mut_simd_f32s(sums).0.as_chunks_mut::<4>();
            let mut first = 0;
            for sums in parts {
                add_weighted::<S, 4>(simd, positions(), first, sums);
                first += 4 * S::F32_LANES;
            }
            for sum in rest {
                add_weighted::<S, 1>(simd, positions(), first, std::array::from_mut(sum));
                first += S::F32_LANES;
            }
        }
    }
}

/// Adds the vectors of positions from element `first` on, each times its weight.
#[inline(always)]
fn add_weighted<'a, S: Simd, const V: usize>(
    simd: S,
    positions: impl Iterator<Item = (&'a [f32], &'a f32)>,
    first: usize,
    sums: &mut [S::f32s; V],
) {
    let mut held = *sums;
    for (position, weight) in positions {
        let weight = simd.splat_f32s(*weight);
        let Some(values) = S::as_simd_f32s(&position[first..]).0.first_chunk::<V>() else { continue };
        for v in 0..V {
            held[v] = simd.mul_add_f32s(weight, values[v], held[v]);
        }
    }
    *sums = held;
}
