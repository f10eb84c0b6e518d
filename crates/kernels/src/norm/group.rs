//! Group normalisation over [N, C, P] (Wu & He 2018): statistics of each sample's groups of channels.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_slice, sum_squared_deviations};

fn check_groups(kernel: &'static str, channels: usize, groups: usize) -> Result<()> {
    if groups == 0 || !channels.is_multiple_of(groups) {
        let problem = format!("{groups} groups do not divide {channels} channels");
        return Err(KernelError::Shape { kernel, problem });
    }
    Ok(())
}

/// y = (x − mean)·inv_std·gamma + beta; `gamma`, `beta` are `[C]`. Saves `mean` and `inv_std`, [N·groups].
///
/// # Errors
/// If a length is not the shape's or the groups do not divide the channels.
pub fn group_norm_forward<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    groups: usize,
    x: &[T],
    gamma: &[T],
    beta: &[T],
    eps: f64,
    y: &mut [T],
    mean: &mut [T],
    inv_std: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "group_norm_forward";
    check_groups(KERNEL, channels, groups)?;
    check_len(KERNEL, "x", batch * channels * plane, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "gamma", channels, gamma.len())?;
    check_len(KERNEL, "beta", channels, beta.len())?;
    check_len(KERNEL, "mean", batch * groups, mean.len())?;
    check_len(KERNEL, "inv_std", batch * groups, inv_std.len())?;
    let in_group = channels / groups;
    let len = in_group * plane;
    if len == 0 {
        return Ok(());
    }
    let mut stats = vec![(T::ZERO, T::ZERO); batch * groups];
    let per_task = stats.len().div_ceil(context.parts() * 4).max(1);
    context.run_chunks(&mut stats, per_task, |task, stats| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, stats) in stats.iter_mut().enumerate() {
                    let x = &x[(task * per_task + offset) * len..][..len];
                    let mean = T::from_f64(sum_slice(x) / len as f64);
                    let variance = sum_squared_deviations(x, mean) / len as f64;
                    *stats = (mean, T::from_f64(1.0 / (variance + eps).sqrt()));
                }
            },
        );
    });
    context.run_chunks(y, per_task * len, |task, y| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, y) in y.chunks_exact_mut(len).enumerate() {
                    let index = task * per_task + offset;
                    let (mean, inv_std) = stats[index];
                    let x = &x[index * len..][..len];
                    for (c, (y, x)) in y.chunks_exact_mut(plane).zip(x.chunks_exact(plane)).enumerate() {
                        let channel = index % groups * in_group + c;
                        let (factor, shift) = (inv_std * gamma[channel], beta[channel]);
                        for (y, x) in y.iter_mut().zip(x) {
                            *y = (*x - mean) * factor + shift;
                        }
                    }
                }
            },
        );
    });
    for (index, (m, s)) in stats.into_iter().enumerate() {
        mean[index] = m;
        inv_std[index] = s;
    }
    Ok(())
}

/// The gradients of group norm; `dgamma` and `dbeta` (`[C]`) are overwritten, as is `dx`.
///
/// # Errors
/// If a length is not the shape's or the groups do not divide the channels.
pub fn group_norm_backward<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    groups: usize,
    x: &[T],
    dy: &[T],
    gamma: &[T],
    mean: &[T],
    inv_std: &[T],
    dx: &mut [T],
    dgamma: &mut [T],
    dbeta: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "group_norm_backward";
    check_groups(KERNEL, channels, groups)?;
    for (name, found) in [("x", x.len()), ("dy", dy.len()), ("dx", dx.len())] {
        check_len(KERNEL, name, batch * channels * plane, found)?;
    }
    for (name, found) in [("gamma", gamma.len()), ("dgamma", dgamma.len()), ("dbeta", dbeta.len())] {
        check_len(KERNEL, name, channels, found)?;
    }
    check_len(KERNEL, "mean", batch * groups, mean.len())?;
    check_len(KERNEL, "inv_std", batch * groups, inv_std.len())?;
    let in_group = channels / groups;
    let len = in_group * plane;
    dgamma.fill(T::ZERO);
    dbeta.fill(T::ZERO);
    if len == 0 {
        return Ok(());
    }
    // Σ dy and Σ dy·x̂ of every plane: all that both kinds of gradient need.
    let mut sums = vec![(0.0_f64, 0.0_f64); batch * channels];
    let per_task = (batch * channels).div_ceil(context.parts() * 4).max(1);
    context.run_chunks(&mut sums, per_task, |task, sums| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, sums) in sums.iter_mut().enumerate() {
                    let index = task * per_task + offset;
                    let group = index / in_group;
                    let (x, dy) = (&x[index * plane..][..plane], &dy[index * plane..][..plane]);
                    let (plain, product) = (sum_slice(dy), dot_slice(dy, x));
                    let (mean, inv_std) = (mean[group].to_f64(), inv_std[group].to_f64());
                    *sums = (plain, (product - mean * plain) * inv_std);
                }
            },
        );
    });
    let mut total = vec![(0.0, 0.0); channels];
    for (index, (plain, product)) in sums.iter().enumerate() {
        total[index % channels].0 += plain;
        total[index % channels].1 += product;
    }
    for (channel, (plain, product)) in total.into_iter().enumerate() {
        dbeta[channel] = T::from_f64(plain);
        dgamma[channel] = T::from_f64(product);
    }
    let per_task = (batch * groups).div_ceil(context.parts() * 4).max(1);
    context.run_chunks(dx, per_task * len, |task, dx| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, dx) in dx.chunks_exact_mut(len).enumerate() {
                    let group = task * per_task + offset;
                    let first = group % groups * in_group;
                    let (mut mean_g, mut mean_gx) = (0.0, 0.0);
                    for c in 0..in_group {
                        let (plain, product) = sums[group * in_group + c];
                        mean_g += gamma[first + c].to_f64() * plain / len as f64;
                        mean_gx += gamma[first + c].to_f64() * product / len as f64;
                    }
                    let (mean, inv_std) = (mean[group], inv_std[group]);
                    let (shift, slope) =
                        (T::from_f64(mean_g) * inv_std, T::from_f64(mean_gx) * inv_std * inv_std);
                    for (c, dx) in dx.chunks_exact_mut(plane).enumerate() {
                        let start = (group * in_group + c) * plane;
                        let (x, dy) = (&x[start..start + plane], &dy[start..start + plane]);
                        let factor = gamma[first + c] * inv_std;
                        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                            *dx = factor * *dy - shift - (*x - mean) * slope;
                        }
                    }
                }
            },
        );
    });
    Ok(())
}
