//! 1×1 convolution without stride or padding, for f32 and planes of whole vectors.
//!
//! An image [C, P] already has the layout of a product with [O, C]: vectors of pixels by single weights. So only the weights
//! are packed, once, and tiles of the result live in registers. The gradient of the weights sums over the pixels: its
//! tiles hold one vector for each weight, and are summed across their lanes after the last image.

use pulp::{Simd, WithSimd};

use super::Conv2dShape;
use super::lane_sums::add_products;
use crate::context::Context;
use crate::vectorized::MOST_LANES;

/// Elements of both maps in a block of the weights' gradient: 512 KiB, half of the second-level cache.
const BLOCK_ELEMENTS: usize = 128 << 10;

/// The most elements of the lanes of all weights' sums: 4 MiB for each thread.
const MOST_SUMS: usize = 1 << 20;

/// True if these kernels compute the convolution.
pub(super) fn suits(shape: &Conv2dShape) -> bool {
    let plain =
        shape.kernel == [1, 1] && shape.stride == [1, 1] && shape.padding == [0, 0] && shape.groups == 1;
    plain && shape.height * shape.width > 0 && (shape.height * shape.width).is_multiple_of(MOST_LANES)
}

/// True if the gradient of the weights is computed here.
pub(super) fn suits_weight(shape: &Conv2dShape) -> bool {
    suits(shape) && shape.weight_len() * MOST_LANES <= MOST_SUMS
}

/// Computes y = w · x.
pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let weights = Weights { values: w, per_output: shape.in_channels, per_input: 1 };
    let channels = [shape.in_channels, shape.out_channels];
    context.dispatch(Product {
        context,
        plane: shape.height * shape.width,
        channels,
        input: x,
        weights,
        out: y,
    });
}

/// Computes dx = wᵀ · dy.
pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let weights = Weights { values: w, per_output: 1, per_input: shape.in_channels };
    let channels = [shape.out_channels, shape.in_channels];
    context.dispatch(Product {
        context,
        plane: shape.height * shape.width,
        channels,
        input: dy,
        weights,
        out: dx,
    });
}

/// The weights in their own layout: (output, input) is at `output·per_output + input·per_input`.
#[derive(Clone, Copy)]
struct Weights<'a> {
    values: &'a [f32],
    per_output: usize,
    per_input: usize,
}

struct Product<'a> {
    context: &'a Context,
    plane: usize,
    /// Channels of the input and of the result.
    channels: [usize; 2],
    input: &'a [f32],
    weights: Weights<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Product { context, plane, channels: [inputs, outputs], input, weights, out } = self;
        let vectors = plane / S::F32_LANES;
        // Wide tiles where there are registers for them and the plane has whole ones.
        let (rows, wide) = match (S::REGISTER_COUNT >= 32, vectors) {
            (true, n) if n.is_multiple_of(4) => (6, 4),
            (true, n) if n.is_multiple_of(2) => (8, 2),
            (true, _) => (8, 1),
            (false, n) if n.is_multiple_of(2) => (4, 2),
            (false, _) => (4, 1),
        };
        let tall = outputs.div_ceil(rows);
        let mut packed = context.scratch(tall * inputs * rows);
        for (index, packed) in packed.chunks_exact_mut(inputs * rows).enumerate() {
            for (input, packed) in packed.chunks_exact_mut(rows).enumerate() {
                for (row, packed) in packed.iter_mut().enumerate() {
                    let output = index * rows + row;
                    let at = output * weights.per_output + input * weights.per_input;
                    *packed = if output < outputs { weights.values[at] } else { 0.0 };
                }
            }
        }
        let packed = &*packed;
        let images = (out.len() / (outputs * plane)).div_ceil(context.parts() * 4).max(1);
        context.run_chunks(out, images * outputs * plane, |task, out| {
            let input = &input[task * images * inputs * plane..];
            context.dispatch(Images { plane, inputs, outputs, shape: [rows, wide], packed, input, out });
        });
    }
}

/// A task: some images.
struct Images<'a> {
    plane: usize,
    inputs: usize,
    outputs: usize,
    shape: [usize; 2],
    packed: &'a [f32],
    input: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Images<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if const { S::REGISTER_COUNT >= 32 } {
            match self.shape {
                [6, 4] => self.all::<S, 6, 4>(simd),
                [8, 2] => self.all::<S, 8, 2>(simd),
                _ => self.all::<S, 8, 1>(simd),
            }
        } else {
            match self.shape {
                [4, 2] => self.all::<S, 4, 2>(simd),
                _ => self.all::<S, 4, 1>(simd),
            }
        }
    }
}

impl Images<'_> {
    /// Computes all images in tiles of `R` channels by `V` vectors of pixels.
    #[inline(always)]
    fn all<S: Simd, const R: usize, const V: usize>(self, simd: S) {
        let (plane, width) = (self.plane, V * S::F32_LANES);
        let images = self.input.chunks_exact(self.inputs * plane);
        for (image, out) in images.zip(self.out.chunks_exact_mut(self.outputs * plane)) {
            for (weights, out) in self.packed.chunks_exact(self.inputs * R).zip(out.chunks_mut(R * plane)) {
                let weights = &weights.as_chunks::<R>().0[..self.inputs];
                for at in (0..plane).step_by(width) {
                    let sums = tile_of_pixels::<S, R, V>(simd, weights, image, plane, at);
                    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(plane)) {
                        S::as_mut_simd_f32s(&mut out[at..at + width]).0.copy_from_slice(sums);
                    }
                }
            }
        }
    }
}

/// Computes `R` channels of the result at `V` vectors of pixels from `at` on. `weights` has `R` for each input channel.
#[inline(always)]
fn tile_of_pixels<S: Simd, const R: usize, const V: usize>(
    simd: S,
    weights: &[[f32; R]],
    image: &[f32],
    plane: usize,
    at: usize,
) -> [[S::f32s; V]; R] {
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    for (weights, row) in weights.iter().zip(image.chunks_exact(plane)) {
        let row = S::as_simd_f32s(&row[at..at + V * S::F32_LANES]).0;
        let row: &[S::f32s; V] = row.try_into().unwrap_or(&sums[0]);
        let now: [S::f32s; V] = *row;
        for i in 0..R {
            let weight = simd.splat_f32s(weights[i]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_f32s(weight, now[v], sums[i][v]);
            }
        }
    }
    sums
}

/// Computes dw += Σ dy · xᵀ over images.
pub(super) fn backward_weight(context: &Context, shape: &Conv2dShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    // Every thread sums its images into its own copy. The copies are added in order, so that the result depends
    // on the number of threads but not on their timing.
    let tasks = context.parts().min(shape.batch).max(1);
    let len = dw.len();
    let mut partial = context.scratch(tasks * len);
    context.run_chunks(&mut partial, len, |task, partial| {
        let images = [task * shape.batch / tasks, (task + 1) * shape.batch / tasks];
        context.dispatch(WeightPart { context, shape, x, dy, images, partial });
    });
    for partial in partial.chunks_exact(len) {
        dw.iter_mut().zip(partial).for_each(|(dw, partial)| *dw += *partial);
    }
}

struct WeightPart<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    x: &'a [f32],
    dy: &'a [f32],
    images: [usize; 2],
    partial: &'a mut [f32],
}

impl WithSimd for WeightPart<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let WeightPart { context, shape, x, dy, images, partial } = self;
        let (inputs, outputs, plane) = (shape.in_channels, shape.out_channels, shape.height * shape.width);
        let mut sums = context.scratch(inputs * outputs * S::F32_LANES);
        sums.fill(0.0);
        let step = (BLOCK_ELEMENTS / ((inputs + outputs) * plane)).max(1);
        for first in (images[0]..images[1]).step_by(step) {
            let last = (first + step).min(images[1]);
            let maps = Maps {
                x: &x[first * inputs * plane..last * inputs * plane],
                dy: &dy[first * outputs * plane..last * outputs * plane],
                inputs,
                outputs,
                plane,
            };
            if const { S::REGISTER_COUNT >= 32 } {
                maps.add::<S, 4, 6>(simd, &mut sums);
            } else {
                maps.add::<S, 2, 5>(simd, &mut sums);
            }
        }
        for (to, sum) in partial.iter_mut().zip(S::as_simd_f32s(&sums).0) {
            *to = simd.reduce_sum_f32s(*sum);
        }
    }
}

/// Both maps of some images.
struct Maps<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    inputs: usize,
    outputs: usize,
    plane: usize,
}

impl Maps<'_> {
    /// Adds to the lanes of all weights' sums, `R` outputs by `C` inputs at a time. Tiles at the end compute the last
    /// channel repeatedly and drop the repetitions.
    #[inline(always)]
    fn add<S: Simd, const R: usize, const C: usize>(&self, simd: S, sums: &mut [f32]) {
        let sums = S::as_mut_simd_f32s(sums).0;
        for output in (0..self.outputs).step_by(R) {
            for input in (0..self.inputs).step_by(C) {
                let tile = self.tile::<S, R, C>(simd, output, input);
                for (i, tile) in tile.iter().enumerate().take(self.outputs - output) {
                    let start = (output + i) * self.inputs + input;
                    for (sum, tile) in sums[start..].iter_mut().zip(tile).take(self.inputs - input) {
                        *sum = simd.add_f32s(*sum, *tile);
                    }
                }
            }
        }
    }

    /// Computes the lanes of the sums of `R` outputs by `C` inputs, from channels `output` and `input` on, over all images.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        output: usize,
        input: usize,
    ) -> [[S::f32s; C]; R] {
        let mut tile = [[simd.splat_f32s(0.0); C]; R];
        let vectors = self.plane / S::F32_LANES;
        let x = self.x.chunks_exact(self.inputs * self.plane);
        for (x, dy) in x.zip(self.dy.chunks_exact(self.outputs * self.plane)) {
            let left: [&[S::f32s]; R] = std::array::from_fn(|i| {
                let start = (output + i).min(self.outputs - 1) * self.plane;
                &S::as_simd_f32s(&dy[start..start + self.plane]).0[..vectors]
            });
            let right: [&[S::f32s]; C] = std::array::from_fn(|j| {
                let start = (input + j).min(self.inputs - 1) * self.plane;
                &S::as_simd_f32s(&x[start..start + self.plane]).0[..vectors]
            });
            tile = add_products(simd, left, right, tile);
        }
        tile
    }
}
