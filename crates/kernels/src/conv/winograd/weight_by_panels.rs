//! The gradient of the weights with many channels and few tiles.
//!
//! The sums are four times the size of the weights. Here a panel of outputs sums over all tiles in memory that stays in the
//! second-level cache, and is transformed back from there. The result does not depend on the number of threads.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::tiles::Tiles;
use super::weight_product::{Product, TALL};
use super::{POINTS, SKEW, transform};
use crate::context::Context;
use crate::transpose::to_channels_last;

/// Output and input channels of a block of sums.
const OUTPUT_BLOCK: usize = 32;
const INPUT_BLOCK: usize = 144;

/// The arguments that all tasks share.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) context: &'a Context,
    pub(super) shape: &'a Conv2dShape,
    pub(super) tiles: &'a Tiles,
}

#[inline(always)]
pub(super) fn run<S: Simd>(shared: Shared<'_>, x: &[f32], dy: &[f32], dw: &mut [f32], accumulate: bool) {
    let Shared { context, shape, tiles } = shared;
    let strides = [
        shape.in_channels.next_multiple_of(S::F32_LANES),
        shape.out_channels.next_multiple_of(S::F32_LANES.max(TALL)),
    ];
    let [in_tile, out_tile] = strides.map(|stride| POINTS * stride + SKEW);
    let count = shape.batch * tiles.per_image();
    let mut in_points = context.scratch(count * in_tile);
    context.run_chunks(&mut in_points, tiles.per_image() * in_tile, |image, to| {
        let size = shape.in_channels * tiles.in_plane;
        let image = &x[image * size..][..size];
        context.dispatch(Points { shared, image, stride: strides[0], reads: true, to });
    });
    let mut out_points = context.scratch(count * out_tile);
    context.run_chunks(&mut out_points, tiles.per_image() * out_tile, |image, to| {
        let size = shape.out_channels * tiles.out_plane;
        let image = &dy[image * size..][..size];
        context.dispatch(Points { shared, image, stride: strides[1], reads: false, to });
    });
    let points = [&in_points[..], &out_points[..]];
    context.run_chunks(dw, OUTPUT_BLOCK * shape.in_channels * 9, |block, dw| {
        context.dispatch(Sums { shared, strides, points, first: block * OUTPUT_BLOCK, dw, accumulate });
    });
}

/// Transforms the tiles of an image.
struct Points<'a> {
    shared: Shared<'a>,
    image: &'a [f32],
    stride: usize,
    /// True for an input, false for a gradient of results.
    reads: bool,
    to: &'a mut [f32],
}

impl WithSimd for Points<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Points { shared: Shared { context, shape, tiles }, image, stride, reads, to } = self;
        let (channels, plane) =
            if reads { (shape.in_channels, tiles.in_plane) } else { (shape.out_channels, tiles.out_plane) };
        let mut pixels = context.scratch((plane + 1) * stride);
        to_channels_last(simd, image, channels, plane, &mut pixels[..plane * stride], stride);
        pixels[plane * stride..].fill(0.0);
        for (tile, to) in to.chunks_exact_mut(POINTS * stride + SKEW).enumerate() {
            if reads {
                transform::input_tile(simd, &pixels, stride, &tiles.reads[tile], to);
            } else {
                transform::output_adjoint_tile(simd, &pixels, stride, &tiles.writes[tile], to);
            }
        }
    }
}

/// Computes the gradient of the weights of some outputs.
struct Sums<'a> {
    shared: Shared<'a>,
    strides: [usize; 2],
    points: [&'a [f32]; 2],
    first: usize,
    dw: &'a mut [f32],
    accumulate: bool,
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sums { shared: Shared { context, shape, .. }, strides, points, first, dw, accumulate } = self;
        let outputs = dw.len() / (shape.in_channels * 9);
        let some_outputs = first..first + outputs.next_multiple_of(TALL);
        let mut sums = context.scratch(POINTS * some_outputs.len() * INPUT_BLOCK);
        for start in (0..strides[0]).step_by(INPUT_BLOCK) {
            let some_inputs = start..(start + INPUT_BLOCK).min(strides[0]);
            let product = Product {
                inputs: points[0],
                outputs: points[1],
                in_tile: POINTS * strides[0] + SKEW,
                out_tile: POINTS * strides[1] + SKEW,
                in_stride: strides[0],
                out_stride: strides[1],
                some_inputs: some_inputs.clone(),
                some_outputs: some_outputs.clone(),
                add: false,
            };
            product.run(simd, &mut sums);
            for (output, dw) in dw.chunks_exact_mut(shape.in_channels * 9).enumerate() {
                let inputs = some_inputs.end.min(shape.in_channels) - start;
                let dw = &mut dw[start * 9..][..inputs * 9];
                let sums = std::iter::once(&sums[output * some_inputs.len()..]);
                let apart = some_outputs.len() * some_inputs.len();
                transform::weight_adjoint_to(simd, &sums, apart, dw, accumulate);
            }
        }
    }
}
