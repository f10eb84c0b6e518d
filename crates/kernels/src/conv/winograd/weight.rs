//! The gradient of the weights, image by image.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::tiles::Tiles;
use super::transform;
use super::weight_by_panels::{self, Shared};
use super::weight_product::{Product, TALL};
use super::{POINTS, SKEW, few_tiles};
use crate::context::Context;
use crate::transpose::to_channels_last;

/// Elements of the transformed tiles of a block, and the least and the most tiles.
const BLOCK_ELEMENTS: usize = 192 << 10;
const FEWEST: usize = 32;
const MOST: usize = 128;

pub(super) fn run(
    context: &Context,
    shape: &Conv2dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    let tiles =
        Tiles::new([shape.height, shape.width], [shape.out_height(), shape.out_width()], shape.padding);
    context.dispatch(Run { context, shape, tiles: &tiles, x, dy, dw, accumulate });
}

struct Run<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    tiles: &'a Tiles,
    x: &'a [f32],
    dy: &'a [f32],
    dw: &'a mut [f32],
    accumulate: bool,
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Run { context, shape, tiles, x, dy, dw, accumulate } = self;
        let [inputs, outputs] = [shape.in_channels, shape.out_channels];
        if few_tiles(shape.batch * tiles.per_image(), inputs, outputs) {
            return weight_by_panels::run::<S>(Shared { context, shape, tiles }, x, dy, dw, accumulate);
        }
        let strides = [
            shape.in_channels.next_multiple_of(S::F32_LANES),
            shape.out_channels.next_multiple_of(S::F32_LANES.max(TALL)),
        ];
        let len = POINTS * strides[0] * strides[1];
        // Every thread sums its images into its own copy. The copies are added in order, so that the result
        // depends on the number of threads but not on their timing.
        let tasks = context.parts().min(shape.batch).max(1);
        let mut partial = context.scratch(tasks * len);
        context.run_chunks(&mut partial, len, |task, partial| {
            let images = [task * shape.batch / tasks, (task + 1) * shape.batch / tasks];
            context.dispatch(Part { context, shape, tiles, strides, x, dy, images, partial });
        });
        let partial = &partial[..];
        context.run_chunks(dw, inputs * 9, |output, dw| {
            context.dispatch(Finish { partial, len, strides, output, dw, accumulate });
        });
    }
}

/// Adds the copies of one output's sums and transforms them to taps.
struct Finish<'a> {
    partial: &'a [f32],
    len: usize,
    strides: [usize; 2],
    output: usize,
    dw: &'a mut [f32],
    accumulate: bool,
}

impl WithSimd for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Finish { partial, len, strides: [in_stride, out_stride], output, dw, accumulate } = self;
        let copies = partial.chunks_exact(len).map(|copy| &copy[output * in_stride..]);
        transform::weight_adjoint_to(simd, &copies, out_stride * in_stride, dw, accumulate);
    }
}

/// A task: some images.
struct Part<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    tiles: &'a Tiles,
    strides: [usize; 2],
    x: &'a [f32],
    dy: &'a [f32],
    images: [usize; 2],
    partial: &'a mut [f32],
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Part { context, shape, tiles, strides: [in_stride, out_stride], x, dy, images, partial } = self;
        let (in_tile, out_tile) = (POINTS * in_stride + SKEW, POINTS * out_stride + SKEW);
        let per_image = tiles.per_image();
        let total = (images[1] - images[0]) * per_image;
        let at_once = (BLOCK_ELEMENTS / (in_tile + out_tile)).clamp(FEWEST, MOST).min(total);
        let mut inputs = context.scratch((tiles.in_plane + 1) * in_stride);
        let mut outputs = context.scratch((tiles.out_plane + 1) * out_stride);
        inputs[tiles.in_plane * in_stride..].fill(0.0);
        outputs[tiles.out_plane * out_stride..].fill(0.0);
        let mut in_points = context.scratch(at_once * in_tile);
        let mut out_points = context.scratch(at_once * out_tile);
        let mut transposed = 0;
        for first in (0..total).step_by(at_once) {
            let here = at_once.min(total - first);
            let both = in_points.chunks_exact_mut(in_tile).zip(out_points.chunks_exact_mut(out_tile));
            for (i, (in_points, out_points)) in both.take(here).enumerate() {
                let (image, tile) = ((first + i) / per_image, (first + i) % per_image);
                if image == transposed {
                    let size = shape.in_channels * tiles.in_plane;
                    let from = &x[(images[0] + image) * size..][..size];
                    let to = &mut inputs[..tiles.in_plane * in_stride];
                    to_channels_last(simd, from, shape.in_channels, tiles.in_plane, to, in_stride);
                    let size = shape.out_channels * tiles.out_plane;
                    let from = &dy[(images[0] + image) * size..][..size];
                    let to = &mut outputs[..tiles.out_plane * out_stride];
                    to_channels_last(simd, from, shape.out_channels, tiles.out_plane, to, out_stride);
                    transposed += 1;
                }
                transform::input_tile(simd, &inputs, in_stride, &tiles.reads[tile], in_points);
                transform::output_adjoint_tile(simd, &outputs, out_stride, &tiles.writes[tile], out_points);
            }
            let product = Product {
                inputs: &in_points[..here * in_tile],
                outputs: &out_points[..here * out_tile],
                in_tile,
                out_tile,
                in_stride,
                out_stride,
                some_inputs: 0..in_stride,
                some_outputs: 0..out_stride,
                add: first > 0,
            };
            product.run(simd, partial);
        }
    }
}
