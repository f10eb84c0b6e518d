//! Root mean square normalisation over the rows of [R, C] (Zhang & Sennrich 2019).

use super::rows::{in_blocks, rows_per_task};
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_squared_deviations};

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

/// Computes the gradients of the input and of the weights of [`rms_norm_forward`]. `before` is a gradient that the input has
/// already: dx is its sum with the norm's.
///
/// # Errors
/// If a length does not match the shape.
pub fn rms_norm_backward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    from: RmsNormBackward<'_, T>,
    before: Option<&[T]>,
    [dx, dgamma]: [&mut [T]; 2],
) -> Result<()> {
    const KERNEL: &str = "rms_norm_backward";
    let RmsNormBackward { x, dy, gamma, inv_rms } = from;
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "dy", x.len(), dy.len())?;
    check_len(KERNEL, "dx", x.len(), dx.len())?;
    check_len(KERNEL, "before", x.len(), before.map_or(x.len(), <[T]>::len))?;
    check_len(KERNEL, "gamma", width, gamma.len())?;
    check_len(KERNEL, "inv_rms", rows, inv_rms.len())?;
    check_len(KERNEL, "dgamma", width, dgamma.len())?;
    dgamma.fill(T::ZERO);
    if x.is_empty() {
        return Ok(());
    }
    in_blocks(
        context,
        width,
        dx,
        dgamma,
        #[inline(always)]
        |rows, dx, dgamma| {
            for (row, dx) in rows.zip(dx.chunks_exact_mut(width)) {
                let at = row * width..(row + 1) * width;
                let (x, dy, inverse) = (&x[at.clone()], &dy[at.clone()], inv_rms[row]);
                input_row([x, dy, gamma], inverse, dx);
                for ((sum, x), dy) in dgamma.iter_mut().zip(x).zip(dy) {
                    *sum += *dy * *x * inverse;
                }
                if let Some(before) = before {
                    dx.iter_mut().zip(&before[at]).for_each(|(dx, before)| *dx += *before);
                }
            }
        },
    );
    Ok(())
}

/// Computes the gradient of one row of the input.
#[inline(always)]
fn input_row<T: Float>([x, dy, gamma]: [&[T]; 3], inverse: T, dx: &mut [T]) {
    for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
        *dx = *dy * *gamma;
    }
    let squared = inverse.to_f64() * inverse.to_f64();
    let slope = T::from_f64(dot_slice(dx, x) * squared / dx.len() as f64);
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx = inverse * (*dx - *x * slope);
    }
}
