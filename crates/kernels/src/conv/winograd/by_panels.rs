//! Forward and the input's gradient with many channels and few tiles, as in a network's last stages.
//!
//! Transformed weights are four times the weights. With 512 channels they are 37 MB, and storing them to read them once or
//! twice costs as much as the products. Here all tiles are transformed first. Every panel of outputs then transforms its
//! own weights, a block of inputs at a time, into memory that stays in the second-level cache.

use pulp::{Simd, WithSimd};

use super::pass::{Pass, TransformWeights};
use super::product::{Panel, Product, WIDEST, panels};
use super::{POINTS, SKEW, transform};
use crate::transpose::{to_channels_last, to_planes};

/// Input channels whose transformed weights stay in the second-level cache with a panel of outputs.
const INPUT_BLOCK: usize = 128;

#[inline(always)]
pub(super) fn run<S: Simd>(pass: &Pass<'_>, input: &[f32], out: &mut [f32]) {
    let Pass { context, inputs, outputs, tiles, batch, .. } = *pass;
    let per_image = tiles.per_image();
    let in_tile = POINTS * inputs.next_multiple_of(S::F32_LANES) + SKEW;
    let mut points = context.scratch(batch * per_image * in_tile);
    context.run_chunks(&mut points, per_image * in_tile, |image, points| {
        let size = inputs * tiles.in_plane;
        context.dispatch(Points { pass, image: &input[image * size..][..size], points });
    });
    let points = &points[..];
    let vectors = outputs.div_ceil(S::F32_LANES);
    // The same number of panels for every thread.
    let count = vectors.div_ceil(WIDEST).next_multiple_of(context.parts()).min(vectors);
    let panels = panels(vectors, count);
    let count = batch * per_image;
    let size = |panel: &Panel| count * (POINTS * panel.vectors * S::F32_LANES + SKEW);
    let mut sums = context.scratch(panels.iter().map(size).sum());
    let (mut items, mut rest) = (Vec::with_capacity(panels.len()), &mut sums[..]);
    for &panel in &panels {
        let (part, others) = rest.split_at_mut(size(&panel));
        items.push((panel, part));
        rest = others;
    }
    context.run_each(items, |(panel, sums)| {
        context.dispatch(Sums { pass, panel, points, sums });
    });
    let sums = &sums[..];
    context.run_chunks(out, outputs * tiles.out_plane, |image, out| {
        context.dispatch(Results { pass, panels: &panels, sums, image, out });
    });
}

/// Transforms the tiles of an image.
struct Points<'a> {
    pass: &'a Pass<'a>,
    image: &'a [f32],
    points: &'a mut [f32],
}

impl WithSimd for Points<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Points { pass, image, points } = self;
        let tiles = pass.tiles;
        let stride = pass.inputs.next_multiple_of(S::F32_LANES);
        let mut pixels = pass.context.scratch((tiles.in_plane + 1) * stride);
        to_channels_last(
            simd,
            image,
            pass.inputs,
            tiles.in_plane,
            &mut pixels[..tiles.in_plane * stride],
            stride,
        );
        pixels[tiles.in_plane * stride..].fill(0.0);
        for (reads, to) in tiles.reads.iter().zip(points.chunks_exact_mut(POINTS * stride + SKEW)) {
            transform::input_tile(simd, &pixels, stride, reads, to);
        }
    }
}

/// Computes the sums of a panel, [tiles, points, outputs].
struct Sums<'a> {
    pass: &'a Pass<'a>,
    panel: Panel,
    points: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sums { pass, panel, points, sums } = self;
        let width = panel.vectors * S::F32_LANES;
        let in_stride = pass.inputs.next_multiple_of(S::F32_LANES);
        let mut weights = pass.context.scratch(POINTS * INPUT_BLOCK.min(pass.inputs) * width);
        for first in (0..pass.inputs).step_by(INPUT_BLOCK) {
            let inputs = INPUT_BLOCK.min(pass.inputs - first);
            let to = &mut weights[..POINTS * inputs * width];
            pass.context.dispatch(TransformWeights { pass, panel, inputs: first..first + inputs, to });
            let product = Product {
                points,
                in_tile: POINTS * in_stride + SKEW,
                in_stride,
                out_tile: POINTS * width + SKEW,
                out_stride: width,
                first,
                inputs,
                count: pass.batch * pass.tiles.per_image(),
            };
            product.run(simd, &[Panel { first: 0, ..panel }], &weights, sums);
        }
    }
}

/// Transforms the sums of an image back.
struct Results<'a> {
    pass: &'a Pass<'a>,
    panels: &'a [Panel],
    sums: &'a [f32],
    image: usize,
    out: &'a mut [f32],
}

impl WithSimd for Results<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Results { pass, panels, mut sums, image, out } = self;
        let (tiles, per_image) = (pass.tiles, pass.tiles.per_image());
        let mut pixels = pass.context.scratch((tiles.out_plane + 1) * WIDEST * S::F32_LANES);
        for panel in panels {
            let width = panel.vectors * S::F32_LANES;
            let out_tile = POINTS * width + SKEW;
            let (here, rest) = sums.split_at(pass.batch * per_image * out_tile);
            sums = rest;
            let tiles_here = here[image * per_image * out_tile..].chunks_exact(out_tile);
            for (from, writes) in tiles_here.zip(&tiles.writes) {
                transform::output_tile(simd, from, width, writes, &mut pixels);
            }
            let first = panel.first * S::F32_LANES;
            let outputs = width.min(pass.outputs - first);
            let planes = &mut out[first * tiles.out_plane..][..outputs * tiles.out_plane];
            to_planes(simd, &pixels, width, outputs, tiles.out_plane, planes);
        }
    }
}
