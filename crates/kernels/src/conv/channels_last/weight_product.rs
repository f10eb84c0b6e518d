//! The products of the weights' gradient: for every tap the sum over pixels of the outer products of channels.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::sources::TapPairs;
use crate::vectorized::Vectorized as _;

/// Output channels of a tile with 32 registers; half with 16. Strides of outputs are multiples of it.
pub(super) const TALL: usize = 8;

/// The widest tile, in vectors of input channels.
const WIDEST: usize = 3;

/// Both maps of a block of images, channels last.
pub(super) struct Maps<'a> {
    pub(super) inputs: &'a [f32],
    pub(super) outputs: &'a [f32],
    pub(super) in_image: usize,
    pub(super) out_image: usize,
    pub(super) in_stride: usize,
    pub(super) out_stride: usize,
    /// The output channels in use: a multiple of [`TALL`].
    pub(super) some_outputs: Range<usize>,
    /// True to add to the present sums.
    pub(super) add: bool,
}

struct Sum<'a> {
    maps: &'a Maps<'a>,
    taps: &'a [TapPairs],
    sums: &'a mut [f32],
}

impl WithSimd for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.maps.tiles(simd, self.taps, self.sums);
    }
}

impl Maps<'_> {
    /// Computes the sums [taps, some outputs, in_stride].
    #[inline(always)]
    pub(super) fn sum<S: Simd>(&self, simd: S, taps: &[TapPairs], sums: &mut [f32]) {
        Sum { maps: self, taps, sums }.vectorized(simd);
    }

    #[inline(always)]
    fn tiles<S: Simd>(&self, simd: S, taps: &[TapPairs], sums: &mut [f32]) {
        let vectors = self.in_stride / S::F32_LANES;
        let tall = if S::REGISTER_COUNT >= 32 { TALL } else { TALL / 2 };
        let panels = vectors.div_ceil(WIDEST);
        for panel in 0..panels {
            let (start, end) = (panel * vectors / panels, (panel + 1) * vectors / panels);
            for output in (0..self.some_outputs.len()).step_by(tall) {
                for (tap, TapPairs { pairs, .. }) in taps.iter().enumerate() {
                    let at = [tap, output, start * S::F32_LANES];
                    self.tile_of_width(simd, end - start, pairs, at, sums);
                }
            }
        }
    }

    /// Computes the tile of `vectors` vectors of input channels, from 1 to [`WIDEST`].
    #[inline(always)]
    fn tile_of_width<S: Simd>(
        &self,
        simd: S,
        vectors: usize,
        pairs: &[(u32, u32)],
        at: [usize; 3],
        sums: &mut [f32],
    ) {
        if const { S::REGISTER_COUNT >= 32 } {
            match vectors {
                3 => self.tile::<S, 8, 3>(simd, pairs, at, sums),
                2 => self.tile::<S, 8, 2>(simd, pairs, at, sums),
                _ => self.tile::<S, 8, 1>(simd, pairs, at, sums),
            }
        } else {
            match vectors {
                3 => self.tile::<S, 4, 3>(simd, pairs, at, sums),
                2 => self.tile::<S, 4, 2>(simd, pairs, at, sums),
                _ => self.tile::<S, 4, 1>(simd, pairs, at, sums),
            }
        }
    }

    /// Adds to `R` output channels by `V` vectors of input channels of one tap, over all pixels and images.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        pairs: &[(u32, u32)],
        [tap, output, input]: [usize; 3],
        to: &mut [f32],
    ) {
        let width = V * S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        let place = |i: usize| (tap * self.some_outputs.len() + output + i) * self.in_stride + input;
        if self.add {
            for (i, sums) in sums.iter_mut().enumerate() {
                sums.copy_from_slice(S::as_simd_f32s(&to[place(i)..place(i) + width]).0);
            }
        }
        let first = self.some_outputs.start + output;
        let images = self.inputs.chunks_exact(self.in_image).zip(self.outputs.chunks_exact(self.out_image));
        for (inputs, outputs) in images {
            for &(out_pixel, in_pixel) in pairs {
                let outputs = &outputs[out_pixel as usize * self.out_stride + first..][..R];
                let inputs = &inputs[in_pixel as usize * self.in_stride + input..][..width];
                let inputs = S::as_simd_f32s(inputs).0;
                for i in 0..R {
                    let value = simd.splat_f32s(outputs[i]);
                    for v in 0..V {
                        sums[i][v] = simd.mul_add_f32s(value, inputs[v], sums[i][v]);
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            S::as_mut_simd_f32s(&mut to[place(i)..place(i) + width]).0.copy_from_slice(sums);
        }
    }
}
