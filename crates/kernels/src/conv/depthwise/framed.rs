//! Depthwise convolution as correlations of one dimension.
//!
//! A plane is copied into a grid with room for the padding. All rows of the grid have the length that an output row needs,
//! so a tap is a fixed distance and the whole plane is one run of vectors: small planes fill vectors as well as large
//! ones. Results between the end of one row and the start of the next are dropped at the end. With a stride the grid is
//! split into phases, one for each position within the step, and a tap is a distance within one of them.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::super::lane_sums::add_products;
use super::grid::Grid;
use crate::context::Context;

/// One term of a correlation: a weight, and the start of its run of elements.
type Term = (f32, usize);

/// Computes out[i] = Σ weight·from[start + i] for whole vectors. A term reads to its start plus the length of `out`.
#[inline(always)]
fn correlate<S: Simd>(simd: S, from: &[f32], terms: &[Term], out: &mut [f32]) {
    const BLOCK: usize = 4;
    let lanes = S::F32_LANES;
    let mut at = 0;
    let mut blocks = out.chunks_exact_mut(BLOCK * lanes);
    for out in &mut blocks {
        let mut sums = [simd.splat_f32s(0.0); BLOCK];
        for &(weight, start) in terms {
            let weight = simd.splat_f32s(weight);
            let from = S::as_simd_f32s(&from[start + at..][..BLOCK * lanes]).0;
            for v in 0..BLOCK {
                sums[v] = simd.mul_add_f32s(weight, from[v], sums[v]);
            }
        }
        S::as_mut_simd_f32s(out).0.copy_from_slice(&sums);
        at += BLOCK * lanes;
    }
    for out in blocks.into_remainder().chunks_exact_mut(lanes) {
        let mut sum = simd.splat_f32s(0.0);
        for &(weight, start) in terms {
            let from = S::as_simd_f32s(&from[start + at..][..lanes]).0;
            sum = simd.mul_add_f32s(simd.splat_f32s(weight), from[0], sum);
        }
        S::as_mut_simd_f32s(out).0[0] = sum;
        at += lanes;
    }
}

/// Output channels that one input channel feeds.
fn multiplier(shape: &Conv2dShape) -> usize {
    shape.out_channels / shape.in_channels
}

/// Planes of a task.
fn planes_per_task(context: &Context, planes: usize) -> usize {
    planes.div_ceil(context.parts() * 4).max(1)
}

pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let grid = Grid::new(shape);
    let per_task = planes_per_task(context, shape.batch * shape.in_channels);
    let size = per_task * multiplier(shape) * grid.output[0] * grid.output[1];
    context.run_chunks(y, size, |task, y| {
        context.dispatch(Forward { context, shape, grid: &grid, first: task * per_task, x, w, y });
    });
}

struct Forward<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    grid: &'a Grid,
    /// The first input plane.
    first: usize,
    x: &'a [f32],
    w: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Forward { context, shape, grid, first, x, w, y } = self;
        let (times, window) = (multiplier(shape), grid.taps.len());
        let (in_plane, out_plane) = (shape.height * shape.width, grid.output[0] * grid.output[1]);
        let run = grid.run::<S>();
        let mut framed = context.scratch(grid.len() + run);
        framed.fill(0.0);
        let mut sums = context.scratch(run);
        let mut terms: Vec<Term> = grid.taps.iter().map(|tap| (0.0, tap.0 + tap.1)).collect();
        for (offset, y) in y.chunks_exact_mut(times * out_plane).enumerate() {
            let plane = first + offset;
            grid.enter(&x[plane * in_plane..(plane + 1) * in_plane], &mut framed);
            for (i, y) in y.chunks_exact_mut(out_plane).enumerate() {
                let w = &w[(plane % shape.in_channels * times + i) * window..][..window];
                terms.iter_mut().zip(w).for_each(|(term, w)| term.0 = *w);
                correlate(simd, &framed, &terms, &mut sums);
                for (to, from) in y.chunks_exact_mut(grid.output[1]).zip(sums.chunks(grid.row)) {
                    to.copy_from_slice(&from[..grid.output[1]]);
                }
            }
        }
    }
}

pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let grid = Grid::new(shape);
    let per_task = planes_per_task(context, shape.batch * shape.in_channels);
    context.run_chunks(dx, per_task * shape.height * shape.width, |task, dx| {
        context.dispatch(BackwardInput { context, shape, grid: &grid, first: task * per_task, dy, w, dx });
    });
}

struct BackwardInput<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    grid: &'a Grid,
    first: usize,
    dy: &'a [f32],
    w: &'a [f32],
    dx: &'a mut [f32],
}

impl WithSimd for BackwardInput<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let BackwardInput { context, shape, grid, first, dy, w, dx } = self;
        let (times, window) = (multiplier(shape), grid.taps.len());
        let (in_plane, out_plane) = (shape.height * shape.width, grid.output[0] * grid.output[1]);
        // An input pixel lies `distance` after the output position that reaches it, so the gradient needs zeros in
        // front; every output channel of a plane has a run of its own.
        let phase = grid.phase.next_multiple_of(S::F32_LANES);
        let run = grid.reach + phase + S::F32_LANES;
        let mut spread = context.scratch(times * run);
        spread.fill(0.0);
        let mut sums = context.scratch(phase);
        let mut framed = context.scratch(grid.len());
        let mut terms: Vec<Term> = Vec::with_capacity(times * window);
        for (offset, dx) in dx.chunks_exact_mut(in_plane).enumerate() {
            let plane = first + offset;
            for (i, run) in spread.chunks_exact_mut(run).enumerate() {
                let dy = &dy[(plane * times + i) * out_plane..][..out_plane];
                grid.spread(dy, &mut run[grid.reach..]);
            }
            let w = &w[plane % shape.in_channels * times * window..][..times * window];
            for (which, framed) in framed.chunks_exact_mut(grid.phase).enumerate() {
                terms.clear();
                for (index, w) in w.iter().enumerate() {
                    let (start, distance) = grid.taps[index % window];
                    if start == which * grid.phase {
                        terms.push((*w, index / window * run + grid.reach - distance));
                    }
                }
                correlate(simd, &spread, &terms, &mut sums);
                framed.copy_from_slice(&sums[..grid.phase]);
            }
            grid.leave(&framed, dx);
        }
    }
}

pub(super) fn backward_weight(context: &Context, shape: &Conv2dShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let grid = Grid::new(shape);
    // A thread takes whole channels, so that the sum over images has one order for any number of threads.
    let per_task = planes_per_task(context, shape.in_channels);
    context.run_chunks(dw, per_task * multiplier(shape) * grid.taps.len(), |task, dw| {
        context.dispatch(BackwardWeight { context, shape, grid: &grid, first: task * per_task, x, dy, dw });
    });
}

struct BackwardWeight<'a> {
    context: &'a Context,
    shape: &'a Conv2dShape,
    grid: &'a Grid,
    /// The first input channel.
    first: usize,
    x: &'a [f32],
    dy: &'a [f32],
    dw: &'a mut [f32],
}

impl WithSimd for BackwardWeight<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let BackwardWeight { context, shape, grid, first, x, dy, dw } = self;
        let (times, window) = (multiplier(shape), grid.taps.len());
        let (in_plane, out_plane) = (shape.height * shape.width, grid.output[0] * grid.output[1]);
        let run = grid.run::<S>();
        let mut framed = context.scratch(grid.len() + run);
        framed.fill(0.0);
        let mut spread = context.scratch(run);
        spread.fill(0.0);
        let mut sums = context.scratch(times * window * S::F32_LANES);
        for (offset, dw) in dw.chunks_exact_mut(times * window).enumerate() {
            sums.fill(0.0);
            for image in 0..shape.batch {
                let plane = image * shape.in_channels + first + offset;
                grid.enter(&x[plane * in_plane..(plane + 1) * in_plane], &mut framed);
                for (i, sums) in sums.chunks_exact_mut(window * S::F32_LANES).enumerate() {
                    grid.spread(&dy[(plane * times + i) * out_plane..][..out_plane], &mut spread);
                    dots(simd, &framed, &spread, &grid.taps, sums);
                }
            }
            for (dw, sums) in dw.iter_mut().zip(S::as_simd_f32s(&sums).0) {
                *dw += simd.reduce_sum_f32s(*sums);
            }
        }
    }
}

/// For every tap adds, lane by lane, the products of `dy` and the elements that the tap reaches.
#[inline(always)]
fn dots<S: Simd>(simd: S, x: &[f32], dy: &[f32], taps: &[(usize, usize)], sums: &mut [f32]) {
    const TOGETHER: usize = 9;
    let lanes = S::F32_LANES;
    for (taps, sums) in taps.chunks(TOGETHER).zip(sums.chunks_mut(TOGETHER * lanes)) {
        let sums = S::as_mut_simd_f32s(sums).0;
        if let (Ok(taps), Ok(sums)) =
            (<&[_; TOGETHER]>::try_from(taps), <&mut [_; TOGETHER]>::try_from(&mut *sums))
        {
            let runs: [&[S::f32s]; TOGETHER] = std::array::from_fn(|tap| {
                let start = taps[tap].0 + taps[tap].1;
                S::as_simd_f32s(&x[start..start + dy.len()]).0
            });
            [*sums] = add_products(simd, [S::as_simd_f32s(dy).0], runs, [*sums]);
            continue;
        }
        for (tap, sum) in taps.iter().zip(sums) {
            let start = tap.0 + tap.1;
            let run = S::as_simd_f32s(&x[start..start + dy.len()]).0;
            for (dy, x) in S::as_simd_f32s(dy).0.iter().zip(run) {
                *sum = simd.mul_add_f32s(*dy, *x, *sum);
            }
        }
    }
}
