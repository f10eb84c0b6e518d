//! Layer normalisation over the rows of [R, C] (Ba et al. 2016).

use super::rows::{rows_per_task, statistics};
use super::{NormBackward, NormGrads, NormInput, NormOutput};
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_slice};

/// Columns whose affine gradients a task adds up.
const COLUMNS: usize = 64;

/// y = (x − mean)·inv_std·gamma + beta over each row. `x` is `[rows, width]`, `gamma` and `beta` are `[width]`, `mean` and
/// `inv_std` are `[rows]`.
///
/// # Errors
/// If a length does not match the shape.
pub fn layer_norm_forward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    input: NormInput<'_, T>,
    to: NormOutput<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "layer_norm_forward";
    let NormInput { x, gamma, beta, eps } = input;
    let NormOutput { y, mean, inv_std } = to;
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "gamma", width, gamma.len())?;
    check_len(KERNEL, "beta", width, beta.len())?;
    check_len(KERNEL, "mean", rows, mean.len())?;
    check_len(KERNEL, "inv_std", rows, inv_std.len())?;
    if x.is_empty() {
        return Ok(());
    }
    statistics(context, width, x, eps, mean, inv_std);
    let (mean, inv_std) = (&*mean, &*inv_std);
    let per_task = rows_per_task(context, rows);
    context.run_chunks(y, per_task * width, |task, y| {
        let x = &x[task * per_task * width..];
        context.simd(
            #[inline(always)]
            || {
                for (offset, (y, x)) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
                    let row = task * per_task + offset;
                    let (mean, inv_std) = (mean[row], inv_std[row]);
                    for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = (*x - mean) * inv_std * *gamma + *beta;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Computes the gradients of layer norm.
///
/// # Errors
/// If a length does not match the shape.
pub fn layer_norm_backward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    from: NormBackward<'_, T>,
    to: NormGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "layer_norm_backward";
    let NormGrads { dx, dgamma, dbeta } = to;
    from.check(KERNEL, rows * width, width, rows)?;
    check_len(KERNEL, "dx", rows * width, dx.len())?;
    check_len(KERNEL, "dgamma", width, dgamma.len())?;
    check_len(KERNEL, "dbeta", width, dbeta.len())?;
    dgamma.fill(T::ZERO);
    dbeta.fill(T::ZERO);
    if from.x.is_empty() {
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
    let columns = dgamma.chunks_mut(COLUMNS).zip(dbeta.chunks_mut(COLUMNS)).enumerate().collect();
    context.run_each(columns, |(task, (dgamma, dbeta)): (usize, (&mut [T], &mut [T]))| {
        context.simd(
            #[inline(always)]
            || affine(from, width, task * COLUMNS, dgamma, dbeta),
        );
    });
    Ok(())
}

/// The gradient of one row of the input.
#[inline(always)]
fn input_row<T: Float>(from: NormBackward<'_, T>, row: usize, dx: &mut [T]) {
    let NormBackward { x, dy, gamma, mean, inv_std } = from;
    let width = dx.len();
    let (x, dy) = (&x[row * width..][..width], &dy[row * width..][..width]);
    let (mean, inv_std) = (mean[row], inv_std[row]);
    for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
        *dx = *dy * *gamma;
    }
    let mean_g = T::from_f64(sum_slice(dx) / width as f64);
    let along = dot_slice(dx, x) - mean.to_f64() * mean_g.to_f64() * width as f64;
    let slope = T::from_f64(along * inv_std.to_f64() * inv_std.to_f64() / width as f64);
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx = inv_std * (*dx - mean_g - (*x - mean) * slope);
    }
}

/// Adds the gradients of the affine parameters of columns `first..`. Rows are added in order, so that the sums do not depend
/// on threads; in f32 a few thousand rows lose little.
#[inline(always)]
fn affine<T: Float>(
    from: NormBackward<'_, T>,
    width: usize,
    first: usize,
    dgamma: &mut [T],
    dbeta: &mut [T],
) {
    let NormBackward { x, dy, mean, inv_std, .. } = from;
    for (row, (mean, inv_std)) in mean.iter().zip(inv_std).enumerate() {
        let at = row * width + first;
        let (x, dy) = (&x[at..][..dgamma.len()], &dy[at..][..dgamma.len()]);
        for (((dgamma, dbeta), x), dy) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(x).zip(dy) {
            *dgamma += *dy * (*x - *mean) * *inv_std;
            *dbeta += *dy;
        }
    }
}
