//! Root mean square normalisation over the rows of [R, C] (Zhang & Sennrich 2019).

use super::rows::rows_per_task;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_squared_deviations};

/// Columns whose weight gradients a task adds up.
const COLUMNS: usize = 64;

/// Computes y = x·gamma/√(mean x² + eps) over each row. `x` and `y` are `[rows, width]`, `gamma` is `[width]`, and `inv_rms`
/// `[rows]` gets 1/√(mean x² + eps).
///
/// # Errors
/// If a length does not match the shape.
pub fn rms_norm_forward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    [x, gamma]: [&[T]; 2],
    eps: f64,
    [y, inv_rms]: [&mut [T]; 2],
) -> Result<()> {
    const KERNEL: &str = "rms_norm_forward";
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "gamma", width, gamma.len())?;
    check_len(KERNEL, "inv_rms", rows, inv_rms.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let per_task = rows_per_task(context, rows);
    let tasks = y.chunks_mut(per_task * width).zip(inv_rms.chunks_mut(per_task)).enumerate().collect();
    context.run_each(tasks, |(task, (y, inv_rms)): (usize, (&mut [T], &mut [T]))| {
        let x = &x[task * per_task * width..];
        context.simd(
            #[inline(always)]
            || {
                for ((y, x), inverse) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(inv_rms) {
                    let mean = sum_squared_deviations(x, T::ZERO) / width as f64;
                    *inverse = T::from_f64(1.0 / (mean + eps).sqrt());
                    for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                        *y = *x * *inverse * *gamma;
                    }
                }
            },
        );
    });
    Ok(())
}

/// The inputs of the backward of [`rms_norm_forward`].
#[derive(Debug, Clone, Copy)]
pub struct RmsNormBackward<'a, T> {
    /// The input of forward.
    pub x: &'a [T],
    /// The gradient of the output.
    pub dy: &'a [T],
    /// The weights.
    pub gamma: &'a [T],
    /// The 1/√(mean x² + eps) that forward saved.
    pub inv_rms: &'a [T],
}

/// Computes the gradients of the input and of the weights of [`rms_norm_forward`].
///
/// # Errors
/// If a length does not match the shape.
pub fn rms_norm_backward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    from: RmsNormBackward<'_, T>,
    [dx, dgamma]: [&mut [T]; 2],
) -> Result<()> {
    const KERNEL: &str = "rms_norm_backward";
    let RmsNormBackward { x, dy, gamma, inv_rms } = from;
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "dy", x.len(), dy.len())?;
    check_len(KERNEL, "dx", x.len(), dx.len())?;
    check_len(KERNEL, "gamma", width, gamma.len())?;
    check_len(KERNEL, "inv_rms", rows, inv_rms.len())?;
    check_len(KERNEL, "dgamma", width, dgamma.len())?;
    dgamma.fill(T::ZERO);
    if x.is_empty() {
        return Ok(());
    }
    let per_task = rows_per_task(context, rows);
    context.run_chunks(dx, per_task * width, |task, dx| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, dx) in dx.chunks_exact_mut(width).enumerate() {
                    input_row(from, task * per_task + offset, dx);
                }
            },
        );
    });
    // A task has some columns of all rows, which it adds in order, so that the sums do not depend on threads.
    context.run_chunks(dgamma, COLUMNS, |task, dgamma| {
        let first = task * COLUMNS;
        context.simd(
            #[inline(always)]
            || {
                for (row, inverse) in inv_rms.iter().enumerate() {
                    let at = row * width + first;
                    let (x, dy) = (&x[at..][..dgamma.len()], &dy[at..][..dgamma.len()]);
                    for ((sum, x), dy) in dgamma.iter_mut().zip(x).zip(dy) {
                        *sum += *dy * *x * *inverse;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Computes the gradient of one row of the input.
#[inline(always)]
fn input_row<T: Float>(from: RmsNormBackward<'_, T>, row: usize, dx: &mut [T]) {
    let RmsNormBackward { x, dy, gamma, inv_rms } = from;
    let width = dx.len();
    let (x, dy, inverse) = (&x[row * width..][..width], &dy[row * width..][..width], inv_rms[row]);
    for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
        *dx = *dy * *gamma;
    }
    let squared = inverse.to_f64() * inverse.to_f64();
    let slope = T::from_f64(dot_slice(dx, x) * squared / width as f64);
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx = inverse * (*dx - *x * slope);
    }
}
