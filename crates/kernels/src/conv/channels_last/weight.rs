//! The gradient of the weights: for every tap the sum over pixels of the outer products of both maps' channels.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::sources::{TapPairs, of_taps};
use super::weight_by_outputs;
use super::weight_product::{Maps, TALL};
use crate::context::Context;
use crate::transpose::to_channels_last;

/// Elements of both maps' copies in a block: 768 KiB, most of the second-level cache.
const BLOCK_ELEMENTS: usize = 192 << 10;

/// True if both maps are smaller than the sums. Then threads share the maps and divide the outputs.
fn few_pixels(shape: &Conv2dShape, taps: usize) -> bool {
    shape.input_len() + shape.output_len() < taps * shape.in_channels * shape.out_channels
}

pub(super) fn run(
    context: &Context,
    shape: &Conv2dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    context.dispatch(Run { context, shape, x, dy, dw, accumulate });
}

struct Run<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    x: &'a [f32],
    dy: &'a [f32],
    dw: &'a mut [f32],
    accumulate: bool,
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Run { context, shape, x, dy, dw, accumulate } = self;
        let taps = of_taps(shape);
        let in_stride = shape.in_channels.next_multiple_of(S::F32_LANES);
        let out_stride = shape.out_channels.next_multiple_of(TALL);
        let len = taps.len() * out_stride * in_stride;
        if len == 0 {
            // Every window lies in the padding.
            if !accumulate {
                dw.fill(0.0);
            }
            return;
        }
        if few_pixels(shape, taps.len()) {
            return weight_by_outputs::run::<S>(context, shape, &taps, x, dy, dw, accumulate);
        }
        // Every thread sums its images into its own copy. The copies are added in order, so that the result
        // depends on the number of threads but not on their timing.
        let tasks = context.parts().min(shape.batch).max(1);
        context.with_scratch(tasks * len, |partial: &mut [f32]| {
            context.run_chunks(partial, len, |task, partial| {
                let images = [task * shape.batch / tasks, (task + 1) * shape.batch / tasks];
                let strides = [in_stride, out_stride];
                context.dispatch(Part { context, shape, taps: &taps, strides, x, dy, images, partial });
            });
            let partial = &*partial;
            let window = shape.kernel[0] * shape.kernel[1];
            context.run_chunks(dw, shape.in_channels * window, |output, dw| {
                if !accumulate && taps.len() < window {
                    dw.fill(0.0);
                }
                for (number, copy) in partial.chunks_exact(len).enumerate() {
                    let sums = copy[output * in_stride..].chunks(out_stride * in_stride);
                    let add = accumulate || number > 0;
                    to_taps(sums.map(|sums| &sums[..shape.in_channels]), &taps, window, dw, add);
                }
            });
        });
    }
}

/// Writes the sums of one output channel, a slice [inputs] for each tap, to its weights [inputs, window], or adds them with
/// `add`.
#[inline(always)]
fn to_taps<'a>(
    sums: impl Iterator<Item = &'a [f32]>,
    taps: &[TapPairs],
    window: usize,
    dw: &mut [f32],
    add: bool,
) {
    for (sums, TapPairs { tap, .. }) in sums.zip(taps) {
        let pairs = dw[*tap..].iter_mut().step_by(window).zip(sums);
        if add {
            pairs.for_each(|(dw, sum)| *dw += *sum);
        } else {
            pairs.for_each(|(dw, sum)| *dw = *sum);
        }
    }
}

/// A task: some images.
struct Part<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    taps: &'a [TapPairs],
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
        let Part { context, shape, taps, strides: [in_stride, out_stride], x, dy, images, partial } = self;
        let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
        let (in_image, out_image) = (in_plane * in_stride, out_plane * out_stride);
        let step = (BLOCK_ELEMENTS / (in_image + out_image)).max(1);
        for first in (images[0]..images[1]).step_by(step) {
            let count = step.min(images[1] - first);
            let mut inputs = context.scratch(count * in_image);
            let size = shape.in_channels * in_plane;
            let from = x[first * size..].chunks_exact(size);
            for (to, image) in inputs.chunks_exact_mut(in_image).zip(from) {
                to_channels_last(simd, image, shape.in_channels, in_plane, to, in_stride);
            }
            let mut outputs = context.scratch(count * out_image);
            let size = shape.out_channels * out_plane;
            let from = dy[first * size..].chunks_exact(size);
            for (to, image) in outputs.chunks_exact_mut(out_image).zip(from) {
                to_channels_last(simd, image, shape.out_channels, out_plane, to, out_stride);
            }
            let maps = Maps {
                inputs: &inputs,
                outputs: &outputs,
                in_image,
                out_image,
                in_stride,
                out_stride,
                some_outputs: 0..out_stride,
                add: first > images[0],
            };
            maps.sum(simd, taps, partial);
        }
    }
}
