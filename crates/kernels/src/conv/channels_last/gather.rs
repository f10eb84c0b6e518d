//! Forward and the input's gradient: pixels as weighted sums of their sources.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::images_in_block;
use super::pack::{PackPanel, Weights};
use super::sources::{Source, Sources};
use crate::context::Context;
use crate::transpose::{to_channels_last, to_planes};

/// Input channels whose weights, with all taps and one panel of outputs, stay in the second-level cache.
const INPUT_BLOCK: usize = 128;

/// The pass out[n, p, :] = Σ over the sources (q, tap) of p: weights[tap]ᵀ · input[n, q, :].
pub(super) struct Pass<'a> {
    pub(super) batch: usize,
    /// Channels of the input.
    pub(super) inputs: usize,
    /// Channels of the result.
    pub(super) outputs: usize,
    /// Pixels of the input.
    pub(super) in_plane: usize,
    /// The taps of the window that have sources, by their place in the weights.
    pub(super) taps: &'a [usize],
    pub(super) sources: &'a Sources,
}

/// The outputs of one tile, in vectors from the first.
#[derive(Debug, Clone, Copy)]
struct Panel {
    first: usize,
    vectors: usize,
    /// The start of its weights.
    weights: usize,
}

/// The widest panel, in vectors.
const WIDEST: usize = 3;

/// Panels of at most [`WIDEST`] vectors, as equal as possible.
fn panels(vectors: usize, lanes: usize, depth: usize) -> Vec<Panel> {
    let count = vectors.div_ceil(WIDEST);
    let first = |index: usize| index * vectors / count;
    (0..count)
        .map(|index| Panel {
            first: first(index),
            vectors: first(index + 1) - first(index),
            weights: first(index) * lanes * depth,
        })
        .collect()
}

impl Pass<'_> {
    /// Runs the pass for images [channels, pixels].
    pub(super) fn run(&self, context: &Context, input: &[f32], weights: Weights<'_>, out: &mut [f32]) {
        context.dispatch(Run { pass: self, context, input, weights, out });
    }
}

struct Run<'a> {
    pass: &'a Pass<'a>,
    context: &'a Context,
    input: &'a [f32],
    weights: Weights<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Run { pass, context, input, weights, out } = self;
        let lanes = S::F32_LANES;
        let vectors = pass.outputs.div_ceil(lanes);
        let depth = pass.taps.len() * pass.inputs;
        let panels = panels(vectors, lanes, depth);
        let group = if S::REGISTER_COUNT >= 32 { 8 } else { 4 };
        let (in_image, out_image) = (pass.in_plane * pass.inputs, pass.sources.pixels() * pass.outputs);
        let images = images_in_block(context, pass.batch, in_image.max(out_image), group);
        context.with_scratch(vectors * lanes * depth, |packed: &mut [f32]| {
            let (mut items, mut rest) = (Vec::with_capacity(panels.len()), &mut *packed);
            for panel in &panels {
                let (part, others) = rest.split_at_mut(panel.vectors * lanes * depth);
                items.push((panel, part));
                rest = others;
            }
            context.run_each(items, |(panel, part)| {
                let channels = [pass.outputs, pass.inputs];
                let (first, width) = (panel.first * lanes, panel.vectors * lanes);
                context.dispatch(PackPanel {
                    weights,
                    taps: pass.taps,
                    channels,
                    first,
                    width,
                    packed: part,
                });
            });
            let packed = &*packed;
            context.run_chunks(out, images * out_image, |task, out| {
                let count = out.len() / out_image.max(1);
                let input = &input[task * images * in_image..][..count * in_image];
                context.dispatch(Block { pass, context, panels: &panels, packed, input, out, count });
            });
        });
    }
}

/// A task: some images.
struct Block<'a> {
    pass: &'a Pass<'a>,
    context: &'a Context,
    panels: &'a [Panel],
    packed: &'a [f32],
    input: &'a [f32],
    out: &'a mut [f32],
    count: usize,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { pass, context, panels, packed, input, out, count } = self;
        let lanes = S::F32_LANES;
        let (in_stride, out_stride) = (pass.inputs, pass.outputs.div_ceil(lanes) * lanes);
        let (in_image, out_image) = (pass.in_plane * in_stride, pass.sources.pixels() * out_stride);
        let mut pixels = context.scratch(count * in_image);
        let planes = input.chunks_exact(in_image);
        for (image, pixels) in planes.zip(pixels.chunks_exact_mut(in_image)) {
            to_channels_last(simd, image, pass.inputs, pass.in_plane, pixels, in_stride);
        }
        let mut result = context.scratch(count * out_image);
        let result = &mut *result;
        let tiles =
            Tiles { pixels: &pixels, in_image, in_stride, out_image, out_stride, inputs: pass.inputs };
        for start in (0..pass.inputs).step_by(INPUT_BLOCK) {
            let channels = start..(start + INPUT_BLOCK).min(pass.inputs);
            for panel in panels {
                let weights = &packed[panel.weights..];
                for pixel in 0..pass.sources.pixels() {
                    let sources = pass.sources.of(pixel);
                    let at = pixel * out_stride + panel.first * lanes;
                    let tile = Tile { sources, weights, channels: channels.clone(), at };
                    match panel.vectors {
                        3 => tiles.all::<S, 3>(simd, &tile, count, result),
                        2 => tiles.all::<S, 2>(simd, &tile, count, result),
                        _ => tiles.all::<S, 1>(simd, &tile, count, result),
                    }
                }
            }
        }
        let plane = pass.sources.pixels();
        for (result, image) in result.chunks_exact(out_image).zip(out.chunks_exact_mut(plane * pass.outputs))
        {
            to_planes(simd, result, out_stride, pass.outputs, plane, image);
        }
    }
}

/// The sizes and the input of all tiles of a block.
struct Tiles<'a> {
    pixels: &'a [f32],
    in_image: usize,
    in_stride: usize,
    out_image: usize,
    out_stride: usize,
    inputs: usize,
}

/// One pixel's vectors of outputs, of several images.
struct Tile<'a> {
    sources: &'a [Source],
    weights: &'a [f32],
    /// The input channels that are added now; the first begin the sum.
    channels: Range<usize>,
    /// The place in an image of the result.
    at: usize,
}

impl Tiles<'_> {
    /// Computes all images in groups that fit the registers.
    #[inline(always)]
    fn all<S: Simd, const V: usize>(&self, simd: S, tile: &Tile<'_>, count: usize, result: &mut [f32]) {
        let mut first = 0;
        while first < count {
            let left = count - first;
            first += if const { S::REGISTER_COUNT >= 32 } && left >= 8 {
                self.one::<S, 8, V>(simd, tile, first, result)
            } else if left >= 4 {
                self.one::<S, 4, V>(simd, tile, first, result)
            } else if left >= 2 {
                self.one::<S, 2, V>(simd, tile, first, result)
            } else {
                self.one::<S, 1, V>(simd, tile, first, result)
            };
        }
    }

    /// Computes the tile of `R` images from `first`; returns `R`.
    #[inline(always)]
    fn one<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        tile: &Tile<'_>,
        first: usize,
        result: &mut [f32],
    ) -> usize {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        let width = V * S::F32_LANES;
        if tile.channels.start > 0 {
            for (i, sums) in sums.iter_mut().enumerate() {
                let start = (first + i) * self.out_image + tile.at;
                sums.copy_from_slice(S::as_simd_f32s(&result[start..start + width]).0);
            }
        }
        let depth = tile.channels.len();
        for source in tile.sources {
            let row = |i: usize| {
                let pixel = (first + i) * self.in_image + source.pixel as usize * self.in_stride;
                &self.pixels[pixel + tile.channels.start..][..depth]
            };
            let rows: [&[f32]; R] = std::array::from_fn(row);
            let start = (source.tap as usize * self.inputs + tile.channels.start) * width;
            let weights = S::as_simd_f32s(&tile.weights[start..start + depth * width]).0;
            let weights = &weights.as_chunks::<V>().0[..depth];
            for (k, weights) in weights.iter().enumerate() {
                for i in 0..R {
                    let value = simd.splat_f32s(rows[i][k]);
                    for v in 0..V {
                        sums[i][v] = simd.mul_add_f32s(value, weights[v], sums[i][v]);
                    }
                }
            }
        }
        debug_assert!(tile.at % self.out_stride + width <= self.out_stride);
        for (i, sums) in sums.iter().enumerate() {
            let start = (first + i) * self.out_image + tile.at;
            S::as_mut_simd_f32s(&mut result[start..start + width]).0.copy_from_slice(sums);
        }
        R
    }
}
