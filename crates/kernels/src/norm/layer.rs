//! Layer normalisation over the rows of [R, C] (Ba et al. 2016).

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{sum_slice, sum_squared_deviations};

/// y = (x − mean)·inv_std·gamma + beta over each row; saves `mean` and `inv_std`, `[R]`.
///
/// # Errors
/// If a length is not the shape's.
pub fn layer_norm_forward<T: Float>(
    context: &Context,
    rows: usize,
    width: usize,
    x: &[T],
    gamma: &[T],
    beta: &[T],
    eps: f64,
    y: &mut [T],
    mean: &mut [T],
    inv_std: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "layer_norm_forward";
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "gamma", width, gamma.len())?;
    check_len(KERNEL, "beta", width, beta.len())?;
    check_len(KERNEL, "mean", rows, mean.len())?;
    check_len(KERNEL, "inv_std", rows, inv_std.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let mut stats = vec![(T::ZERO, T::ZERO); rows];
    let per_task = rows.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(&mut stats, per_task, |task, stats| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, stats) in stats.iter_mut().enumerate() {
                    let x = &x[(task * per_task + offset) * width..][..width];
                    let mean = T::from_f64(sum_slice(x) / width as f64);
                    let variance = sum_squared_deviations(x, mean) / width as f64;
                    *stats = (mean, T::from_f64(1.0 / (variance + eps).sqrt()));
                }
            },
        );
    });
    context.run_chunks(y, per_task * width, |task, y| {
        let start = task * per_task * width;
        context.simd(
            #[inline(always)]
            || {
                for (offset, (y, x)) in
                    y.chunks_exact_mut(width).zip(x[start..].chunks_exact(width)).enumerate()
                {
                    let (mean, inv_std) = stats[task * per_task + offset];
                    for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = (*x - mean) * inv_std * *gamma + *beta;
                    }
                }
            },
        );
    });
    for (row, (m, s)) in stats.into_iter().enumerate() {
        mean[row] = m;
        inv_std[row] = s;
    }
    Ok(())
}

/// The gradients of layer norm; `dx`, `dgamma` and `dbeta` are overwritten.
///
/// # Errors
/// If a length is not the shape's.
pub fn layer_norm_backward<T: Float>(
    context: &Context,
    rows: usize,
    width: usize,
    x: &[T],
    dy: &[T],
    gamma: &[T],
    mean: &[T],
    inv_std: &[T],
    dx: &mut [T],
    dgamma: &mut [T],
    dbeta: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "layer_norm_backward";
    for (name, found) in [("x", x.len()), ("dy", dy.len()), ("dx", dx.len())] {
        check_len(KERNEL, name, rows * width, found)?;
    }
    for (name, found) in [("gamma", gamma.len()), ("dgamma", dgamma.len()), ("dbeta", dbeta.len())] {
        check_len(KERNEL, name, width, found)?;
    }
    check_len(KERNEL, "mean", rows, mean.len())?;
    check_len(KERNEL, "inv_std", rows, inv_std.len())?;
    dgamma.fill(T::ZERO);
    dbeta.fill(T::ZERO);
    if x.is_empty() {
        return Ok(());
    }
    let per_task = rows.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(dx, per_task * width, |task, dx| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, dx) in dx.chunks_exact_mut(width).enumerate() {
                    let row = task * per_task + offset;
                    let (x, dy) = (&x[row * width..][..width], &dy[row * width..][..width]);
                    let (mean, inv_std) = (mean[row], inv_std[row]);
                    for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
                        *dx = *dy * *gamma;
                    }
                    let mean_g = T::from_f64(sum_slice(dx) / width as f64);
                    let along =
                        crate::reduce::dot_slice(dx, x) - mean.to_f64() * mean_g.to_f64() * width as f64;
                    let slope = T::from_f64(along * inv_std.to_f64() * inv_std.to_f64() / width as f64);
                    for (dx, x) in dx.iter_mut().zip(x) {
                        *dx = inv_std * (*dx - mean_g - (*x - mean) * slope);
                    }
                }
            },
        );
    });
    // Rows in order, so that the sums do not depend on threads; f32 with few thousand rows loses little.
    context.simd(
        #[inline(always)]
        || {
            for (row, (x, dy)) in x.chunks_exact(width).zip(dy.chunks_exact(width)).enumerate() {
                let (mean, inv_std) = (mean[row], inv_std[row]);
                for (((dgamma, dbeta), x), dy) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(x).zip(dy) {
                    *dgamma += *dy * (*x - mean) * inv_std;
                    *dbeta += *dy;
                }
            }
        },
    );
    Ok(())
}
