//! Depthwise convolution of small planes, with the channels innermost.
//!
//! A plane of one or four pixels fills no vector, but a pixel's channels do. Images are transposed so that the channels are
//! contiguous. Then every pixel is a sum over its sources, vector by vector, and taps in the padding cost nothing.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::super::channels_last::sources::{Source, Sources, TapPairs, of_inputs, of_outputs, of_taps};
use crate::context::Context;
use crate::transpose::{to_channels_last, to_planes};
use crate::vectorized::MOST_LANES;

/// Pixels of the larger plane up to which transposing is faster than framing.
const MOST_PIXELS: usize = 64;

/// True if these kernels compute the convolution.
pub(super) fn suits(shape: &Conv2dShape) -> bool {
    let pixels = (shape.height * shape.width).max(shape.out_height() * shape.out_width());
    shape.in_channels == shape.out_channels && shape.in_channels >= MOST_LANES && pixels <= MOST_PIXELS
}

/// Transposes the weights [C, taps] to [taps, channels], padded.
fn transposed_weights(shape: &Conv2dShape, w: &[f32]) -> Vec<f32> {
    let (window, stride) =
        (shape.kernel[0] * shape.kernel[1], shape.in_channels.next_multiple_of(MOST_LANES));
    let mut transposed = vec![0.0; window * stride];
    to_channels_last(pulp::Scalar, w, shape.in_channels, window, &mut transposed, stride);
    transposed
}

pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let planes = [shape.height * shape.width, shape.out_height() * shape.out_width()];
    sum_sources(context, shape, planes, &of_outputs(shape), x, w, y);
}

pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let planes = [shape.out_height() * shape.out_width(), shape.height * shape.width];
    sum_sources(context, shape, planes, &of_inputs(shape), dy, w, dx);
}

/// Computes the pixels of `out` as sums over their sources; `planes` are the pixels of `input` and of `out`.
fn sum_sources(
    context: &Context,
    shape: &Conv2dShape,
    planes: [usize; 2],
    sources: &Sources,
    input: &[f32],
    w: &[f32],
    out: &mut [f32],
) {
    let weights = transposed_weights(shape, w);
    let images = shape.batch.div_ceil(context.parts() * 2).max(1);
    let channels = shape.in_channels;
    context.run_chunks(out, images * channels * planes[1], |task, out| {
        let input = &input[task * images * channels * planes[0]..];
        context.dispatch(Sums { context, channels, planes, sources, weights: &weights, input, out });
    });
}

struct Sums<'a> {
    context: &'a Context,
    channels: usize,
    planes: [usize; 2],
    sources: &'a Sources,
    weights: &'a [f32],
    input: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sums { context, channels, planes: [in_plane, out_plane], sources, weights, input, out } = self;
        let stride = channels.next_multiple_of(MOST_LANES);
        let vectors = stride / S::F32_LANES;
        let mut transposed = context.scratch(in_plane * stride);
        let mut result = context.scratch(out_plane * stride);
        let weights = S::as_simd_f32s(weights).0;
        let images = input.chunks_exact(channels * in_plane);
        for (input, out) in images.zip(out.chunks_exact_mut(channels * out_plane)) {
            to_channels_last(simd, input, channels, in_plane, &mut transposed, stride);
            let transposed = S::as_simd_f32s(&transposed).0;
            let pixels = S::as_mut_simd_f32s(&mut result).0.chunks_exact_mut(vectors);
            for (pixel, result) in pixels.enumerate() {
                let sources = sources.of(pixel);
                let mut at = 0;
                while at < vectors {
                    at += if vectors - at >= 4 {
                        sum::<S, 4>(simd, sources, weights, transposed, vectors, at, result)
                    } else {
                        sum::<S, 1>(simd, sources, weights, transposed, vectors, at, result)
                    };
                }
            }
            to_planes(simd, &result, stride, channels, out_plane, out);
        }
    }
}

pub(super) fn backward_weight(context: &Context, shape: &Conv2dShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let taps = of_taps(shape);
    let stride = shape.in_channels.next_multiple_of(MOST_LANES);
    let len = (taps.len() * stride).max(1);
    // Every thread sums its images into its own copy. The copies are added in order, so that the result depends
    // on the number of threads but not on their timing.
    let tasks = context.parts().min(shape.batch).max(1);
    let mut partial = context.scratch(tasks * len);
    partial.fill(0.0);
    context.run_chunks(&mut partial, len, |task, partial| {
        let images = [task * shape.batch / tasks, (task + 1) * shape.batch / tasks];
        context.dispatch(WeightPart { context, shape, taps: &taps, x, dy, images, partial });
    });
    let window = shape.kernel[0] * shape.kernel[1];
    for partial in partial.chunks_exact(len) {
        for (TapPairs { tap, .. }, sums) in taps.iter().zip(partial.chunks_exact(stride)) {
            dw[*tap..].iter_mut().step_by(window).zip(sums).for_each(|(dw, sum)| *dw += *sum);
        }
    }
}

struct WeightPart<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    taps: &'a [TapPairs],
    x: &'a [f32],
    dy: &'a [f32],
    images: [usize; 2],
    partial: &'a mut [f32],
}

impl WithSimd for WeightPart<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let WeightPart { context, shape, taps, x, dy, images, partial } = self;
        let channels = shape.in_channels;
        let stride = channels.next_multiple_of(MOST_LANES);
        let vectors = stride / S::F32_LANES;
        let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
        let mut inputs = context.scratch(in_plane * stride);
        let mut outputs = context.scratch(out_plane * stride);
        for image in images[0]..images[1] {
            let at = image * channels;
            to_channels_last(
                simd,
                &x[at * in_plane..(at + channels) * in_plane],
                channels,
                in_plane,
                &mut inputs,
                stride,
            );
            to_channels_last(
                simd,
                &dy[at * out_plane..(at + channels) * out_plane],
                channels,
                out_plane,
                &mut outputs,
                stride,
            );
            let (inputs, outputs) = (S::as_simd_f32s(&inputs).0, S::as_simd_f32s(&outputs).0);
            let sums = S::as_mut_simd_f32s(partial).0.chunks_exact_mut(vectors);
            for (TapPairs { pairs, .. }, sums) in taps.iter().zip(sums) {
                let mut at = 0;
                while at < vectors {
                    at += if vectors - at >= 4 {
                        add_products::<S, 4>(simd, pairs, [inputs, outputs], vectors, at, sums)
                    } else {
                        add_products::<S, 1>(simd, pairs, [inputs, outputs], vectors, at, sums)
                    };
                }
            }
        }
    }
}

/// Computes `U` vectors of a pixel's channels as sums over its sources; returns `U`. Several sums at once hide the latency of
/// the multiplications.
#[inline(always)]
fn sum<S: Simd, const U: usize>(
    simd: S,
    sources: &[Source],
    weights: &[S::f32s],
    pixels: &[S::f32s],
    vectors: usize,
    at: usize,
    result: &mut [S::f32s],
) -> usize {
    let mut sums = [simd.splat_f32s(0.0); U];
    for source in sources {
        let weights = &weights[source.tap as usize * vectors + at..][..U];
        let pixel = &pixels[source.pixel as usize * vectors + at..][..U];
        for u in 0..U {
            sums[u] = simd.mul_add_f32s(weights[u], pixel[u], sums[u]);
        }
    }
    result[at..at + U].copy_from_slice(&sums);
    U
}

/// Adds a tap's products of `U` vectors of channels; returns `U`.
#[inline(always)]
fn add_products<S: Simd, const U: usize>(
    simd: S,
    pairs: &[(u32, u32)],
    [inputs, outputs]: [&[S::f32s]; 2],
    vectors: usize,
    at: usize,
    sums: &mut [S::f32s],
) -> usize {
    let mut now = [simd.splat_f32s(0.0); U];
    now.copy_from_slice(&sums[at..at + U]);
    for &(out_pixel, in_pixel) in pairs {
        let dy = &outputs[out_pixel as usize * vectors + at..][..U];
        let x = &inputs[in_pixel as usize * vectors + at..][..U];
        for u in 0..U {
            now[u] = simd.mul_add_f32s(dy[u], x[u], now[u]);
        }
    }
    sums[at..at + U].copy_from_slice(&now);
    U
}
