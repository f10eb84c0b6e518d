//! Group normalisation over [N, C, P] (Wu & He 2018): statistics of each sample's groups of channels.

use super::rows::{rows_per_task, statistics};
use super::{GroupNormShape, NormBackward, NormGrads, NormInput, NormOutput};
use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_slice};

impl GroupNormShape {
    fn check(&self, kernel: &'static str) -> Result<()> {
        if self.groups == 0 || !self.channels.is_multiple_of(self.groups) {
            let problem = format!("{} groups do not divide {} channels", self.groups, self.channels);
            return Err(KernelError::Shape { kernel, problem });
        }
        Ok(())
    }

    /// Elements of the input.
    fn len(&self) -> usize {
        self.batch * self.channels * self.plane
    }

    /// Channels of a group.
    fn in_group(&self) -> usize {
        self.channels / self.groups
    }

    /// Elements of a group.
    fn group_len(&self) -> usize {
        self.in_group() * self.plane
    }
}

/// y = (x − mean)·inv_std·gamma + beta over each group. `gamma` and `beta` are `[C]`, `mean` and `inv_std` are `[N·groups]`.
///
/// # Errors
/// If a length does not match the shape, or the groups do not divide the channels.
pub fn group_norm_forward<T: Float>(
    context: &Context,
    shape: GroupNormShape,
    input: NormInput<'_, T>,
    to: NormOutput<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "group_norm_forward";
    shape.check(KERNEL)?;
    let NormInput { x, gamma, beta, eps } = input;
    let NormOutput { y, mean, inv_std } = to;
    let GroupNormShape { batch, channels, plane, groups } = shape;
    check_len(KERNEL, "x", shape.len(), x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "gamma", channels, gamma.len())?;
    check_len(KERNEL, "beta", channels, beta.len())?;
    check_len(KERNEL, "mean", batch * groups, mean.len())?;
    check_len(KERNEL, "inv_std", batch * groups, inv_std.len())?;
    let (in_group, len) = (shape.in_group(), shape.group_len());
    if len == 0 {
        return Ok(());
    }
    statistics(context, len, x, eps, mean, inv_std);
    let (mean, inv_std) = (&*mean, &*inv_std);
    let per_task = rows_per_task(context, batch * groups);
    context.run_chunks(y, per_task * len, |task, y| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, y) in y.chunks_exact_mut(len).enumerate() {
                    let index = task * per_task + offset;
                    let first = index % groups * in_group;
                    let affine = (&gamma[first..][..in_group], &beta[first..][..in_group]);
                    let x = &x[index * len..][..len];
                    normalise_group(plane, x, (mean[index], inv_std[index]), affine, y);
                }
            },
        );
    });
    Ok(())
}

/// Normalises one group: channels of `plane` elements, each with its own gamma and beta.
#[inline(always)]
fn normalise_group<T: Float>(
    plane: usize,
    x: &[T],
    (mean, inv_std): (T, T),
    (gamma, beta): (&[T], &[T]),
    y: &mut [T],
) {
    let planes = y.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
    for ((y, x), (gamma, beta)) in planes.zip(gamma.iter().zip(beta)) {
        let (factor, shift) = (inv_std * *gamma, *beta);
        for (y, x) in y.iter_mut().zip(x) {
            *y = (*x - mean) * factor + shift;
        }
    }
}

/// Computes the gradients of group norm; `dgamma` and `dbeta` are `[C]`.
///
/// # Errors
/// If a length does not match the shape, or the groups do not divide the channels.
pub fn group_norm_backward<T: Float>(
    context: &Context,
    shape: GroupNormShape,
    from: NormBackward<'_, T>,
    to: NormGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "group_norm_backward";
    shape.check(KERNEL)?;
    let NormGrads { dx, dgamma, dbeta } = to;
    let GroupNormShape { batch, channels, groups, .. } = shape;
    from.check(KERNEL, shape.len(), channels, batch * groups)?;
    check_len(KERNEL, "dx", shape.len(), dx.len())?;
    check_len(KERNEL, "dgamma", channels, dgamma.len())?;
    check_len(KERNEL, "dbeta", channels, dbeta.len())?;
    dgamma.fill(T::ZERO);
    dbeta.fill(T::ZERO);
    let len = shape.group_len();
    if len == 0 {
        return Ok(());
    }
    let sums = plane_sums(context, shape, from);
    let mut totals = vec![PlaneSums::default(); channels];
    for (index, sums) in sums.iter().enumerate() {
        totals[index % channels].dy += sums.dy;
        totals[index % channels].dy_xhat += sums.dy_xhat;
    }
    for (channel, total) in totals.into_iter().enumerate() {
        dbeta[channel] = T::from_f64(total.dy);
        dgamma[channel] = T::from_f64(total.dy_xhat);
    }
    let per_task = rows_per_task(context, batch * groups);
    context.run_chunks(dx, per_task * len, |task, dx| {
        context.simd(
            #[inline(always)]
            || {
                for (offset, dx) in dx.chunks_exact_mut(len).enumerate() {
                    input_group(shape, from, &sums, task * per_task + offset, dx);
                }
            },
        );
    });
    Ok(())
}

/// The sums of a plane that both kinds of gradient need.
#[derive(Debug, Clone, Copy, Default)]
struct PlaneSums {
    /// Σ dy.
    dy: f64,
    /// Σ dy·x̂.
    dy_xhat: f64,
}

/// The sums of all planes, [N, C].
fn plane_sums<T: Float>(
    context: &Context,
    shape: GroupNormShape,
    from: NormBackward<'_, T>,
) -> Vec<PlaneSums> {
    let NormBackward { x, dy, mean, inv_std, .. } = from;
    let (in_group, plane) = (shape.in_group(), shape.plane);
    let mut sums = vec![PlaneSums::default(); shape.batch * shape.channels];
    let per_task = rows_per_task(context, sums.len());
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
                    *sums = PlaneSums { dy: plain, dy_xhat: (product - mean * plain) * inv_std };
                }
            },
        );
    });
    sums
}

/// The gradient of one group of the input.
#[inline(always)]
fn input_group<T: Float>(
    shape: GroupNormShape,
    from: NormBackward<'_, T>,
    sums: &[PlaneSums],
    group: usize,
    dx: &mut [T],
) {
    let NormBackward { x, dy, gamma, mean, inv_std } = from;
    let (in_group, plane, len) = (shape.in_group(), shape.plane, shape.group_len());
    let first = group % shape.groups * in_group;
    let (mut mean_g, mut mean_gx) = (0.0, 0.0);
    for c in 0..in_group {
        let sums = sums[group * in_group + c];
        mean_g += gamma[first + c].to_f64() * sums.dy / len as f64;
        mean_gx += gamma[first + c].to_f64() * sums.dy_xhat / len as f64;
    }
    let (mean, inv_std) = (mean[group], inv_std[group]);
    let (shift, slope) = (T::from_f64(mean_g) * inv_std, T::from_f64(mean_gx) * inv_std * inv_std);
    for (c, dx) in dx.chunks_exact_mut(plane).enumerate() {
        let start = (group * in_group + c) * plane;
        let (x, dy) = (&x[start..start + plane], &dy[start..start + plane]);
        let factor = gamma[first + c] * inv_std;
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            *dx = factor * *dy - shift - (*x - mean) * slope;
        }
    }
}
