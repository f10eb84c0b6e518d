//! Statistics of rows of equal length.

use crate::context::Context;
use crate::float::Float;
use crate::reduce::{sum_slice, sum_squared_deviations};

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
