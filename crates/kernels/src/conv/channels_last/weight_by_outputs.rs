//! The gradient of the weights if there are more weights than pixels, as in a network's last stages.
//!
//! Copies of the sums for every thread would be most of the memory traffic. Here threads share both maps, and each sums all
//! images for some outputs. The result does not depend on the number of threads.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::sources::TapPairs;
use super::weight_product::{Maps, TALL};
use crate::context::Context;
use crate::transpose::{to_channels_last, to_windows};

/// Elements of a thread's sums: half of the second-level cache.
const BLOCK_ELEMENTS: usize = 128 << 10;

#[inline(always)]
pub(super) fn run<S: Simd>(
    context: &Context,
    shape: &Conv2dShape,
    taps: &[TapPairs],
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    let planes = [shape.height * shape.width, shape.out_height() * shape.out_width()];
    let channels = [shape.in_channels, shape.out_channels];
    let strides = [channels[0].next_multiple_of(S::F32_LANES), channels[1].next_multiple_of(TALL)];
    let mut copies = [context.scratch(0), context.scratch(0)];
    let mut transposed = [x, dy];
    for (i, copy) in copies.iter_mut().enumerate() {
        // A map of one pixel already has its channels innermost.
        if planes[i] != 1 || strides[i] != channels[i] {
            *copy = context.scratch(shape.batch * planes[i] * strides[i]);
            let (channels, plane, stride, map) = (channels[i], planes[i], strides[i], transposed[i]);
            context.run_chunks(copy, plane * stride, |image, to| {
                let image = &map[image * channels * plane..][..channels * plane];
                context.dispatch(ToChannelsLast { image, channels, plane, stride, to });
            });
        }
    }
    for (transposed, copy) in transposed.iter_mut().zip(&copies) {
        if !copy.is_empty() {
            *transposed = copy;
        }
    }
    let window = shape.kernel[0] * shape.kernel[1];
    let shared = Shared { context, taps, channels, planes, strides, window, maps: transposed, accumulate };
    let fit = BLOCK_ELEMENTS / (taps.len() * strides[0]).max(1);
    let share = channels[1].div_ceil(context.parts());
    let outputs = (fit.min(share) / TALL * TALL).max(TALL);
    context.run_chunks(dw, outputs * channels[0] * window, |block, dw| {
        context.dispatch(Sums { shared: &shared, first: block * outputs, dw });
    });
}

/// The arguments that all tasks share.
struct Shared<'a> {
    context: &'a Context,
    taps: &'a [TapPairs],
    /// Channels of the input and of the gradient; the next two likewise.
    channels: [usize; 2],
    planes: [usize; 2],
    strides: [usize; 2],
    window: usize,
    /// Both maps, channels last.
    maps: [&'a [f32]; 2],
    accumulate: bool,
}

/// Copies one image to channels last.
struct ToChannelsLast<'a> {
    image: &'a [f32],
    channels: usize,
    plane: usize,
    stride: usize,
    to: &'a mut [f32],
}

impl WithSimd for ToChannelsLast<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        to_channels_last(simd, self.image, self.channels, self.plane, self.to, self.stride);
    }
}

/// Computes the gradient of the weights of some outputs.
struct Sums<'a> {
    shared: &'a Shared<'a>,
    first: usize,
    dw: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sums { shared, first, dw } = self;
        let Shared { context, taps, channels, planes, strides, window, maps, accumulate } = *shared;
        let outputs = dw.len() / (channels[0] * window);
        let some = outputs.next_multiple_of(TALL);
        let mut products = Maps {
            inputs: maps[0],
            outputs: maps[1],
            in_image: planes[0] * strides[0],
            out_image: planes[1] * strides[1],
            in_stride: strides[0],
            out_stride: strides[1],
            some_outputs: first..first + some,
            add: false,
        };
        if window == 1 && strides[0] == channels[0] && some == outputs {
            products.add = accumulate;
            return products.sum(simd, taps, dw);
        }
        let mut sums = context.scratch(taps.len() * some * strides[0]);
        products.sum(simd, taps, &mut sums);
        if taps.len() < window && !accumulate {
            dw.fill(0.0);
        }
        let places: Vec<usize> = taps.iter().map(|pairs| pairs.tap).collect();
        for (output, dw) in dw.chunks_exact_mut(channels[0] * window).enumerate() {
            let sums = &sums[output * strides[0]..];
            to_windows(simd, sums, some * strides[0], &places, channels[0], window, dw, accumulate);
        }
    }
}
