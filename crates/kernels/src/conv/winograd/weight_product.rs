//! The products of the weights' gradient: both maps' transformed tiles, summed over the tiles.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::POINTS;
use crate::vectorized::Vectorized as _;

/// Output channels of a register tile with 32 registers; half with 16. Strides of outputs are multiples of it.
pub(super) const TALL: usize = 8;

/// The widest register tile, in vectors of input channels.
const WIDEST: usize = 3;

/// For every point the sum over the tiles of the outer products of both maps' channels.
pub(super) struct Product<'a> {
    /// Points of the input, [tiles, points, in_stride] with tiles `in_tile` apart.
    pub(super) inputs: &'a [f32],
    /// Points of the gradient, the same.
    pub(super) outputs: &'a [f32],
    pub(super) in_tile: usize,
    pub(super) out_tile: usize,
    pub(super) in_stride: usize,
    pub(super) out_stride: usize,
    /// The input channels in use: whole vectors.
    pub(super) some_inputs: Range<usize>,
    /// The output channels in use: a multiple of [`TALL`].
    pub(super) some_outputs: Range<usize>,
    /// True to add to the present sums.
    pub(super) add: bool,
}

struct Run<'a> {
    product: &'a Product<'a>,
    sums: &'a mut [f32],
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.product.points(simd, self.sums);
    }
}

impl Product<'_> {
    /// Computes the sums [points, some outputs, some inputs].
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, simd: S, sums: &mut [f32]) {
        Run { product: self, sums }.vectorized(simd);
    }

    #[inline(always)]
    fn points<S: Simd>(&self, simd: S, sums: &mut [f32]) {
        let vectors = self.some_inputs.len() / S::F32_LANES;
        let tall = if S::REGISTER_COUNT >= 32 { TALL } else { TALL / 2 };
        let panels = vectors.div_ceil(WIDEST);
        for point in 0..POINTS {
            for panel in 0..panels {
                let (start, end) = (panel * vectors / panels, (panel + 1) * vectors / panels);
                for output in (0..self.some_outputs.len()).step_by(tall) {
                    let at = [point, output, start * S::F32_LANES];
                    self.tile_of_width(simd, end - start, at, sums);
                }
            }
        }
    }

    /// Computes the tile of `vectors` vectors of input channels, from 1 to [`WIDEST`].
    #[inline(always)]
    fn tile_of_width<S: Simd>(&self, simd: S, vectors: usize, at: [usize; 3], sums: &mut [f32]) {
        if const { S::REGISTER_COUNT >= 32 } {
            match vectors {
                3 => self.tile::<S, 8, 3>(simd, at, sums),
                2 => self.tile::<S, 8, 2>(simd, at, sums),
                _ => self.tile::<S, 8, 1>(simd, at, sums),
            }
        } else {
            match vectors {
                3 => self.tile::<S, 4, 3>(simd, at, sums),
                2 => self.tile::<S, 4, 2>(simd, at, sums),
                _ => self.tile::<S, 4, 1>(simd, at, sums),
            }
        }
    }

    /// Computes a tile of `R` output channels by `V` vectors of input channels: its sums over the tiles of the maps.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        [point, output, input]: [usize; 3],
        to: &mut [f32],
    ) {
        let width = V * S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        if self.add {
            for (i, sums) in sums.iter_mut().enumerate() {
                let start = (point * self.some_outputs.len() + output + i) * self.some_inputs.len() + input;
                sums.copy_from_slice(S::as_simd_f32s(&to[start..start + width]).0);
            }
        }
        let tiles = self.inputs.chunks_exact(self.in_tile).zip(self.outputs.chunks_exact(self.out_tile));
        for (inputs, outputs) in tiles {
            let outputs = &outputs[point * self.out_stride + self.some_outputs.start + output..][..R];
            let inputs =
                S::as_simd_f32s(&inputs[point * self.in_stride + self.some_inputs.start + input..][..width])
                    .0;
            for i in 0..R {
                let value = simd.splat_f32s(outputs[i]);
                for v in 0..V {
                    sums[i][v] = simd.mul_add_f32s(value, inputs[v], sums[i][v]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let start = (point * self.some_outputs.len() + output + i) * self.some_inputs.len() + input;
            S::as_mut_simd_f32s(&mut to[start..start + width]).0.copy_from_slice(sums);
        }
    }
}
