//! Depthwise convolution row by row: planes are copied into a frame of zeros, then each output row is one pass.

use super::super::Conv2dShape;
use crate::context::Context;
use crate::float::Float;

/// Sizes of a plane with its frame of zeros.
#[derive(Clone, Copy)]
struct Frame {
    height: usize,
    width: usize,
}

impl Frame {
    fn new(shape: &Conv2dShape) -> Self {
        // One row more than needed, so that reading whole vectors past the last pixel stays inside.
        Self { height: shape.height + 2 * shape.padding[0] + 1, width: shape.width + 2 * shape.padding[1] }
    }

    fn len(self) -> usize {
        self.height * self.width
    }

    /// Copies a plane to its place in the frame.
    #[inline(always)]
    fn fill<T: Float>(self, shape: &Conv2dShape, plane: &[T], framed: &mut [T]) {
        let rows = framed.chunks_exact_mut(self.width).skip(shape.padding[0]);
        for (to, from) in rows.zip(plane.chunks_exact(shape.width)) {
            to[shape.padding[1]..shape.padding[1] + shape.width].copy_from_slice(from);
        }
    }

    /// Copies the plane out of the frame.
    #[inline(always)]
    fn take<T: Float>(self, shape: &Conv2dShape, framed: &[T], plane: &mut [T]) {
        let rows = framed.chunks_exact(self.width).skip(shape.padding[0]);
        for (to, from) in plane.chunks_exact_mut(shape.width).zip(rows) {
            to.copy_from_slice(&from[shape.padding[1]..shape.padding[1] + shape.width]);
        }
    }
}

/// Returns the number of output channels that one input channel feeds.
fn multiplier(shape: &Conv2dShape) -> usize {
    shape.out_channels / shape.in_channels
}

/// Returns the filters of the channel of an input plane, one for each output channel that it feeds.
#[inline(always)]
fn filters<'a, T>(shape: &Conv2dShape, w: &'a [T], plane: usize) -> &'a [T] {
    let len = multiplier(shape) * shape.kernel[0] * shape.kernel[1];
    &w[plane % shape.in_channels * len..][..len]
}

/// Computes the output plane of one filter `w` from a plane in its frame.
#[inline(always)]
fn forward_plane<T: Float>(shape: &Conv2dShape, frame: Frame, framed: &[T], w: &[T], y: &mut [T]) {
    let [stride_y, stride_x] = shape.stride;
    let [dilation_y, dilation_x] = shape.dilation;
    let out_width = shape.out_width();
    for (oy, y) in y.chunks_exact_mut(out_width).enumerate() {
        let first = &framed[oy * stride_y * frame.width..];
        if shape.kernel == [3, 3] && shape.dilation == [1, 1] && stride_x == 1 {
            let rows = [0, 1, 2].map(|ky| &first[ky * frame.width..][..out_width + 2]);
            row_under_3x3(rows, w, y);
            continue;
        }
        y.fill(T::ZERO);
        for (ky, w) in w.chunks_exact(shape.kernel[1]).enumerate() {
            for (kx, w) in w.iter().enumerate() {
                let row = &first[ky * dilation_y * frame.width + kx * dilation_x..];
                if stride_x == 1 {
                    y.iter_mut().zip(row).for_each(|(y, x)| *y += *w * *x);
                } else {
                    y.iter_mut().zip(row.iter().step_by(stride_x)).for_each(|(y, x)| *y += *w * *x);
                }
            }
        }
    }
}

/// Computes an output row of a 3×3 window with stride 1 from the three rows of pixels under it.
#[inline(always)]
fn row_under_3x3<T: Float>(rows: [&[T]; 3], w: &[T], y: &mut [T]) {
    let w: [T; 9] = std::array::from_fn(|tap| w[tap]);
    for (ox, y) in y.iter_mut().enumerate() {
        let mut sum = T::ZERO;
        for ky in 0..3 {
            for kx in 0..3 {
                sum += w[3 * ky + kx] * rows[ky][ox + kx];
            }
        }
        *y = sum;
    }
}

/// Computes y = w ∗ x.
pub(in crate::conv) fn forward<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    w: &[T],
    y: &mut [T],
) {
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    let group = multiplier(shape) * out_plane;
    let frame = Frame::new(shape);
    let planes = shape.batch * shape.in_channels;
    let per_task = planes.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(y, per_task * group, |task, y| {
        context.with_scratch(frame.len(), |framed: &mut [T]| {
            framed.fill(T::ZERO);
            context.simd(
                #[inline(always)]
                || {
                    for (offset, y) in y.chunks_exact_mut(group).enumerate() {
                        let plane = task * per_task + offset;
                        frame.fill(shape, &x[plane * in_plane..(plane + 1) * in_plane], framed);
                        forward_channel(shape, frame, framed, filters(shape, w, plane), y);
                    }
                },
            );
        });
    });
}

/// Computes the output planes that one input plane feeds, each with its filter of `w`.
#[inline(always)]
fn forward_channel<T: Float>(shape: &Conv2dShape, frame: Frame, framed: &[T], w: &[T], y: &mut [T]) {
    let (window, out_plane) = (shape.kernel[0] * shape.kernel[1], shape.out_height() * shape.out_width());
    for (w, y) in w.chunks_exact(window).zip(y.chunks_exact_mut(out_plane)) {
        forward_plane(shape, frame, framed, w, y);
    }
}

/// Computes dx, the gradient of the input.
pub(in crate::conv) fn backward_input<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) {
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    let group = multiplier(shape) * out_plane;
    let frame = Frame::new(shape);
    let planes = shape.batch * shape.in_channels;
    let per_task = planes.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(dx, per_task * in_plane, |task, dx| {
        context.with_scratch(frame.len(), |framed: &mut [T]| {
            context.simd(
                #[inline(always)]
                || {
                    for (offset, dx) in dx.chunks_exact_mut(in_plane).enumerate() {
                        let plane = task * per_task + offset;
                        framed.fill(T::ZERO);
                        let dy = &dy[plane * group..(plane + 1) * group];
                        scatter_channel(shape, frame, dy, filters(shape, w, plane), framed);
                        frame.take(shape, framed, dx);
                    }
                },
            );
        });
    });
}

/// Adds the gradients of the output planes that one input plane feeds, each with its filter of `w`.
#[inline(always)]
fn scatter_channel<T: Float>(shape: &Conv2dShape, frame: Frame, dy: &[T], w: &[T], framed: &mut [T]) {
    let (window, out_plane) = (shape.kernel[0] * shape.kernel[1], shape.out_height() * shape.out_width());
    for (w, dy) in w.chunks_exact(window).zip(dy.chunks_exact(out_plane)) {
        scatter_plane(shape, frame, dy, w, framed);
    }
}

/// Adds `dy` times each weight to the pixels under its tap.
#[inline(always)]
fn scatter_plane<T: Float>(shape: &Conv2dShape, frame: Frame, dy: &[T], w: &[T], framed: &mut [T]) {
    let [stride_y, stride_x] = shape.stride;
    let [dilation_y, dilation_x] = shape.dilation;
    for (oy, dy) in dy.chunks_exact(shape.out_width()).enumerate() {
        for (ky, w) in w.chunks_exact(shape.kernel[1]).enumerate() {
            let start = (oy * stride_y + ky * dilation_y) * frame.width;
            for (kx, w) in w.iter().enumerate() {
                let row = &mut framed[start + kx * dilation_x..];
                if stride_x == 1 {
                    row.iter_mut().zip(dy).for_each(|(x, dy)| *x += *w * *dy);
                } else {
                    row.iter_mut().step_by(stride_x).zip(dy).for_each(|(x, dy)| *x += *w * *dy);
                }
            }
        }
    }
}

/// Adds dw, the gradient of the weights.
pub(in crate::conv) fn backward_weight<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
) {
    let group = multiplier(shape) * shape.kernel[0] * shape.kernel[1];
    let frame = Frame::new(shape);
    // A thread takes whole channels, so that the sum over images has one order for any number of threads.
    let per_task = shape.in_channels.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(dw, per_task * group, |task, dw| {
        context.with_scratch(frame.len(), |framed: &mut [T]| {
            framed.fill(T::ZERO);
            context.simd(
                #[inline(always)]
                || {
                    for (offset, dw) in dw.chunks_exact_mut(group).enumerate() {
                        correlate_channel(shape, frame, task * per_task + offset, [x, dy], framed, dw);
                    }
                },
            );
        });
    });
}

/// Adds the gradients of the filters of one input channel, image by image.
#[inline(always)]
fn correlate_channel<T: Float>(
    shape: &Conv2dShape,
    frame: Frame,
    channel: usize,
    [x, dy]: [&[T]; 2],
    framed: &mut [T],
    dw: &mut [T],
) {
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    let (times, window) = (multiplier(shape), shape.kernel[0] * shape.kernel[1]);
    for image in 0..shape.batch {
        let plane = image * shape.in_channels + channel;
        frame.fill(shape, &x[plane * in_plane..(plane + 1) * in_plane], framed);
        let dy = dy[plane * times * out_plane..].chunks_exact(out_plane);
        for (dw, dy) in dw.chunks_exact_mut(window).zip(dy) {
            correlate_plane(shape, frame, framed, dy, dw);
        }
    }
}

/// Adds ⟨dy, pixels under the tap⟩ to each weight's gradient.
#[inline(always)]
fn correlate_plane<T: Float>(shape: &Conv2dShape, frame: Frame, framed: &[T], dy: &[T], dw: &mut [T]) {
    let [stride_y, stride_x] = shape.stride;
    let [dilation_y, dilation_x] = shape.dilation;
    let out_width = shape.out_width();
    for (tap, dw) in dw.iter_mut().enumerate() {
        let (ky, kx) = (tap / shape.kernel[1], tap % shape.kernel[1]);
        let mut lanes = [T::ZERO; LANES];
        let mut rest = T::ZERO;
        for (oy, dy) in dy.chunks_exact(out_width).enumerate() {
            let row = &framed[(oy * stride_y + ky * dilation_y) * frame.width + kx * dilation_x..];
            if stride_x == 1 {
                add_products(dy, &row[..out_width], &mut lanes, &mut rest);
            } else {
                dy.iter().zip(row.iter().step_by(stride_x)).for_each(|(dy, x)| rest += *dy * *x);
            }
        }
        *dw += lanes.iter().copied().sum::<T>() + rest;
    }
}

/// Sums that are computed next to each other, so that additions fill vectors.
const LANES: usize = 16;

/// Adds the products of the elements: those of whole vectors to their lanes, the others to `rest`.
#[inline(always)]
fn add_products<T: Float>(dy: &[T], x: &[T], lanes: &mut [T; LANES], rest: &mut T) {
    let (whole, tail) = dy.as_chunks::<LANES>();
    let (x_whole, x_tail) = x.as_chunks::<LANES>();
    for (dy, x) in whole.iter().zip(x_whole) {
        for lane in 0..LANES {
            lanes[lane] += dy[lane] * x[lane];
        }
    }
    tail.iter().zip(x_tail).for_each(|(dy, x)| *rest += *dy * *x);
}
