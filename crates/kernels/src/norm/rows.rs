//! Rows of equal length: their statistics, and sums over them.

use std::ops::Range;

use crate::context::Context;
use crate::float::Float;
use crate::reduce::{sum_slice, sum_squared_deviations};

/// Rows of which a task adds up the gradients of parameters. It does not depend on threads, and so neither do the sums.
const BLOCK: usize = 32;

/// Runs `block` on blocks of rows side by side. It gets the rows, their part of `dx`, and numbers to which it adds its part of
/// `sums`. These are then added in the order of the blocks.
pub(super) fn in_blocks<T: Float>(
    context: &Context,
    width: usize,
    dx: &mut [T],
    sums: &mut [T],
    block: impl Fn(Range<usize>, &mut [T], &mut [T]) + Sync,
) {
    sums.fill(T::ZERO);
    let (count, room) = (dx.len().div_ceil(BLOCK * width), sums.len());
    let mut others = vec![T::ZERO; count.saturating_sub(1) * room];
    let rooms = std::iter::once(&mut *sums).chain(others.chunks_mut(room));
    let tasks = dx.chunks_mut(BLOCK * width).zip(rooms).enumerate().collect();
    context.run_each(tasks, |(task, (dx, room)): (usize, (&mut [T], &mut [T]))| {
        let first = task * BLOCK;
        context.simd(
            #[inline(always)]
            || block(first..first + dx.len() / width, dx, room),
        );
    });
    for room in others.chunks(room) {
        sums.iter_mut().zip(room).for_each(|(sum, part)| *sum += *part);
    }
}

/// Rows of a task.
pub(super) fn rows_per_task(context: &Context, rows: usize) -> usize {
    rows.div_ceil(context.parts() * 4).max(1)
}

/// Writes the mean and 1/√(variance + eps) of each row of `width` elements.
pub(super) fn statistics<T: Float>(
    context: &Context,
    width: usize,
    x: &[T],
    eps: f64,
    mean: &mut [T],
    inv_std: &mut [T],
) {
    let per_task = rows_per_task(context, mean.len());
    let items = mean.chunks_mut(per_task).zip(inv_std.chunks_mut(per_task)).enumerate().collect();
    context.run_each(items, |(task, (mean, inv_std))| {
        let x = &x[task * per_task * width..];
        context.simd(
            #[inline(always)]
            || {
                for ((mean, inv_std), x) in mean.iter_mut().zip(inv_std).zip(x.chunks_exact(width)) {
                    *mean = T::from_f64(sum_slice(x) / width as f64);
                    let variance = sum_squared_deviations(x, *mean) / width as f64;
                    *inv_std = T::from_f64(1.0 / (variance + eps).sqrt());
                }
            },
        );
    });
}
