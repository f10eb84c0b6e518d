//! Layer normalisation over the rows of [R, C] (Ba et al. 2016).

use super::rows::{in_blocks, rows_per_task, statistics};
use super::{NormBackward, NormGrads, NormInput, NormOutput};
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_slice};

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

/// Computes the gradients of layer norm. `before` is a gradient that the input has already: dx is its sum with the norm's.
///
/// # Errors
/// If a length does not match the shape.
pub fn layer_norm_backward<T: Float>(
    context: &Context,
    [rows, width]: [usize; 2],
    from: NormBackward<'_, T>,
    before: Option<&[T]>,
    to: NormGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "layer_norm_backward";
    let NormGrads { dx, dgamma, dbeta } = to;
    from.check(KERNEL, rows * width, width, rows)?;
    check_len(KERNEL, "dx", rows * width, dx.len())?;
    check_len(KERNEL, "before", rows * width, before.map_or(rows * width, <[T]>::len))?;
    check_len(KERNEL, "dgamma", width, dgamma.len())?;
    check_len(KERNEL, "dbeta", width, dbeta.len())?;
    dgamma.fill(T::ZERO);
    dbeta.fill(T::ZERO);
    if from.x.is_empty() {
        return Ok(());
    }
    let mut sums = vec![T::ZERO; 2 * width];
    in_blocks(
        context,
        width,
        dx,
        &mut sums,
        #[inline(always)]
        |rows, dx, sums| {
            let (dgamma, dbeta) = sums.split_at_mut(width);
            for (row, dx) in rows.zip(dx.chunks_exact_mut(width)) {
                let from = Row::of(from, row, width);
                from.input(dx);
                from.affine(dgamma, dbeta);
                if let Some(before) = before {
                    dx.iter_mut().zip(&before[row * width..]).for_each(|(dx, before)| *dx += *before);
                }
            }
        },
    );
    dgamma.copy_from_slice(&sums[..width]);
    dbeta.copy_from_slice(&sums[width..]);
    Ok(())
}

/// One row of the inputs of backward.
struct Row<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    gamma: &'a [T],
    mean: T,
    inv_std: T,
}

impl<'a, T: Float> Row<'a, T> {
    #[inline(always)]
    fn of(from: NormBackward<'a, T>, row: usize, width: usize) -> Self {
        let NormBackward { x, dy, gamma, mean, inv_std } = from;
        let at = row * width..(row + 1) * width;
        Self { x: &x[at.clone()], dy: &dy[at], gamma, mean: mean[row], inv_std: inv_std[row] }
    }

    /// Writes the gradient of the input.
    #[inline(always)]
    fn input(&self, dx: &mut [T]) {
        let Self { x, dy, gamma, mean, inv_std } = *self;
        for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
            *dx = *dy * *gamma;
        }
        let width = dx.len() as f64;
        let mean_g = T::from_f64(sum_slice(dx) / width);
        let along = dot_slice(dx, x) - mean.to_f64() * mean_g.to_f64() * width;
        let slope = T::from_f64(along * inv_std.to_f64() * inv_std.to_f64() / width);
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = inv_std * (*dx - mean_g - (*x - mean) * slope);
        }
    }

    /// Adds to the gradients of the weight and of the bias.
    #[inline(always)]
    fn affine(&self, dgamma: &mut [T], dbeta: &mut [T]) {
        let Self { x, dy, mean, inv_std, .. } = *self;
        for (((dgamma, dbeta), x), dy) in dgamma.iter_mut().zip(dbeta).zip(x).zip(dy) {
            *dgamma += *dy * (*x - mean) * inv_std;
            *dbeta += *dy;
        }
    }
}
