//! The products of forward: transformed tiles by transformed weights.

use pulp::{Simd, WithSimd};

use super::POINTS;
use crate::vectorized::Vectorized as _;

/// Input channels that are added at a time: the weights of a panel and point then stay in the first-level cache.
const INPUT_BLOCK: usize = 128;

/// The widest panel of outputs, in vectors.
pub(super) const WIDEST: usize = 3;

/// A panel of outputs, in vectors from the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    pub(super) first: usize,
    pub(super) vectors: usize,
}

/// Divides the vectors into `count` panels, as equal as possible.
pub(super) fn panels(vectors: usize, count: usize) -> Vec<Panel> {
    let first = |i: usize| i * vectors / count;
    (0..count).map(|i| Panel { first: first(i), vectors: first(i + 1) - first(i) }).collect()
}

/// For every point the product of the transformed tiles with the transformed weights.
pub(super) struct Product<'a> {
    /// The tiles' points, [tiles, points, in_stride] with tiles `in_tile` apart.
    pub(super) points: &'a [f32],
    pub(super) in_tile: usize,
    pub(super) in_stride: usize,
    /// The sums are [tiles, points, out_stride] with tiles `out_tile` apart.
    pub(super) out_tile: usize,
    pub(super) out_stride: usize,
    /// The input channels, from the first.
    pub(super) first: usize,
    pub(super) inputs: usize,
    /// Tiles.
    pub(super) count: usize,
}

/// The offsets of one call of the innermost kernel in the input, the weights and the sums.
#[derive(Clone, Copy)]
struct KernelOffsets {
    points: usize,
    weights: usize,
    sums: usize,
    depth: usize,
    /// True to add to the sums.
    add: bool,
}

struct Run<'a> {
    product: &'a Product<'a>,
    panels: &'a [Panel],
    weights: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.product.points(simd, self.panels, self.weights, self.sums);
    }
}

impl Product<'_> {
    /// Multiplies the tiles with the weights of some panels.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, simd: S, panels: &[Panel], weights: &[f32], sums: &mut [f32]) {
        Run { product: self, panels, weights, sums }.vectorized(simd);
    }

    #[inline(always)]
    fn points<S: Simd>(&self, simd: S, panels: &[Panel], weights: &[f32], sums: &mut [f32]) {
        let per_vector = self.inputs * S::F32_LANES;
        for point in 0..POINTS {
            for panel in panels {
                let base = (panel.first * POINTS + point * panel.vectors) * per_vector;
                for start in (0..self.inputs).step_by(INPUT_BLOCK) {
                    let place = KernelOffsets {
                        points: point * self.in_stride + self.first + start,
                        weights: base + start * panel.vectors * S::F32_LANES,
                        sums: point * self.out_stride + panel.first * S::F32_LANES,
                        depth: INPUT_BLOCK.min(self.inputs - start),
                        add: self.first + start > 0,
                    };
                    match panel.vectors {
                        3 => self.all::<S, 3>(simd, weights, place, sums),
                        2 => self.all::<S, 2>(simd, weights, place, sums),
                        _ => self.all::<S, 1>(simd, weights, place, sums),
                    }
                }
            }
        }
    }

    /// Computes all tiles in groups that fit the registers.
    #[inline(always)]
    fn all<S: Simd, const V: usize>(&self, simd: S, weights: &[f32], place: KernelOffsets, sums: &mut [f32]) {
        let mut first = 0;
        while first < self.count {
            let left = self.count - first;
            first += if const { S::REGISTER_COUNT >= 32 } && left >= 8 {
                self.some::<S, 8, V>(simd, weights, place, first, sums)
            } else if left >= 4 {
                self.some::<S, 4, V>(simd, weights, place, first, sums)
            } else if left >= 2 {
                self.some::<S, 2, V>(simd, weights, place, first, sums)
            } else {
                self.some::<S, 1, V>(simd, weights, place, first, sums)
            };
        }
    }

    /// Computes `R` tiles from `first`; returns `R`.
    #[inline(always)]
    fn some<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        weights: &[f32],
        place: KernelOffsets,
        first: usize,
        sums: &mut [f32],
    ) -> usize {
        let width = V * S::F32_LANES;
        let mut tile = [[simd.splat_f32s(0.0); V]; R];
        if place.add {
            for (i, tile) in tile.iter_mut().enumerate() {
                let start = (first + i) * self.out_tile + place.sums;
                tile.copy_from_slice(S::as_simd_f32s(&sums[start..start + width]).0);
            }
        }
        let mut rows: [&[f32]; R] = [&[]; R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &self.points[(first + i) * self.in_tile + place.points..][..place.depth];
        }
        let weights = S::as_simd_f32s(&weights[place.weights..][..place.depth * width]).0;
        let weights = &weights.as_chunks::<V>().0[..place.depth];
        for (k, weights) in weights.iter().enumerate() {
            for i in 0..R {
                let value = simd.splat_f32s(rows[i][k]);
                for v in 0..V {
                    tile[i][v] = simd.mul_add_f32s(value, weights[v], tile[i][v]);
                }
            }
        }
        for (i, tile) in tile.iter().enumerate() {
            let start = (first + i) * self.out_tile + place.sums;
            S::as_mut_simd_f32s(&mut sums[start..start + width]).0.copy_from_slice(tile);
        }
        R
    }
}
