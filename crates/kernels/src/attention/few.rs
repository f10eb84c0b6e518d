//! Tiles of few queries: keys and values are read where they lie.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::element::AttentionElement;
use super::operands::Rows;
use super::tile::KEYS;
use crate::context::Context;
use crate::float::Float;
use crate::products::LANES;

/// The positions of a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Positions<'a, T> {
    /// From the first position on.
    data: &'a [T],
    /// The distance between positions.
    width: usize,
    count: usize,
    /// Elements of a position.
    dim: usize,
}

impl<'a, T: Float> Positions<'a, T> {
    /// Runs `f` with the positions of a tile.
    pub(super) fn with<E: AttentionElement<Float = T>>(
        context: &Context,
        of: Rows<'_, E>,
        tile: &Range<usize>,
        dim: usize,
        f: impl FnOnce(Positions<'_, T>),
    ) {
        let count = tile.len();
        context.with_scratch(of.room(count, dim), |room: &mut [T]| {
            let Rows { data, width } = of.from(tile.start).floats(context, [count, dim], room);
            f(Positions { data, width, count, dim });
        });
    }

    /// The positions if they are of f32, and of whole vectors.
    fn singles(&self) -> Option<Positions<'a, f32>> {
        let Self { data, width, count, dim } = *self;
        let data = T::singles(data).filter(|_| dim.is_multiple_of(LANES))?;
        Some(Positions { data, width, count, dim })
    }

    /// Each position with its place in `of_each`.
    fn zip<'e, E>(&self, of_each: &'e [E]) -> impl Iterator<Item = (&'a [T], &'e E)> + use<'a, 'e, T, E> {
        let dim = self.dim;
        self.data.chunks(self.width).map(move |position| &position[..dim]).zip(&of_each[..self.count])
    }
}

/// Multiplies rows, one after the other, with positions. Rows of `to` are [`KEYS`] apart.
pub(super) fn row_scores<T: Float>(context: &Context, rows: &[T], positions: Positions<'_, T>, to: &mut [T]) {
    if let (Some(rows), Some(positions)) = (T::singles(rows), positions.singles())
        && let Some(to) = T::singles_mut(to)
    {
        return context.dispatch(Scores { rows, positions, to });
    }
    let Positions { data, width, count, dim } = positions;
    for (row, to) in rows.chunks_exact(dim).zip(to.chunks_mut(KEYS)) {
        for (position, to) in data.chunks(width).zip(&mut to[..count]) {
            *to = row.iter().zip(position).fold(T::ZERO, |sum, (a, b)| sum + *a * *b);
        }
    }
}

/// Multiplies weights, whose rows are [`KEYS`] apart, with positions. Sums begin at 0 unless `add`.
pub(super) fn weighted_rows<T: Float>(
    context: &Context,
    weights: &[T],
    positions: Positions<'_, T>,
    add: bool,
    sums: &mut [T],
) {
    if !add {
        sums.fill(T::ZERO);
    }
    if let (Some(weights), Some(positions)) = (T::singles(weights), positions.singles())
        && let Some(sums) = T::singles_mut(sums)
    {
        return context.dispatch(Weighted { weights, positions, sums });
    }
    for (weights, sums) in weights.chunks(KEYS).zip(sums.chunks_exact_mut(positions.dim)) {
        for (position, weight) in positions.zip(weights) {
            sums.iter_mut().zip(position).for_each(|(sum, value)| *sum += *weight * *value);
        }
    }
}

/// [`row_scores`] of f32.
struct Scores<'a> {
    rows: &'a [f32],
    positions: Positions<'a, f32>,
    to: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, positions: Positions { data, width, count, dim }, to } = self;
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
    positions: Positions<'a, f32>,
    sums: &'a mut [f32],
}

impl WithSimd for Weighted<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { weights, positions, sums } = self;
        for (weights, sums) in weights.chunks(KEYS).zip(sums.chunks_exact_mut(positions.dim)) {
            let (parts, rest) = S::as_mut_simd_f32s(sums).0.as_chunks_mut::<4>();
            let mut first = 0;
            for sums in parts {
                add_weighted::<S, 4>(simd, positions.zip(weights), first, sums);
                first += 4 * S::F32_LANES;
            }
            for sum in rest {
                add_weighted::<S, 1>(simd, positions.zip(weights), first, std::array::from_mut(sum));
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
