//! Statistics and normalisation of batch norm.

use super::{Activation, Affine, Epilogue, Part, Sizes, planes, small_planes, with_activation};
use crate::columns::column_blocks;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::norm::NormInput;

/// Computes the mean of each channel and the sum of squared deviations from it (Σ(x − mean)²), each `[C]`.
///
/// With n = N·P elements a channel, groups a and b combine as mean = (nₐ·meanₐ + n_b·mean_b)/n and
/// M2 = M2ₐ + M2_b + (meanₐ − mean_b)²·nₐ·n_b/n (Chan et al. 1983).
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_moments<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    mean: &mut [f64],
    moment: &mut [f64],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_moments";
    let sizes = Sizes { batch, channels, plane };
    check_len(KERNEL, "x", sizes.len(), x.len())?;
    check_len(KERNEL, "mean", channels, mean.len())?;
    check_len(KERNEL, "moment", channels, moment.len())?;
    let per_task = sizes.per_task(context);
    let items = mean.chunks_mut(per_task).zip(moment.chunks_mut(per_task)).enumerate().collect();
    context.run_each(items, |(task, (mean, moment))| {
        let part = Part { sizes, first: task * per_task, count: mean.len(), x };
        context.simd(
            #[inline(always)]
            || moments(part, mean, moment),
        );
    });
    Ok(())
}

#[inline(always)]
fn moments<T: Float>(part: Part<'_, T>, mean: &mut [f64], moment: &mut [f64]) {
    if small_planes::suits(part.sizes.plane) {
        small_planes::moments(part, mean, moment);
    } else {
        planes::moments(part, mean, moment);
    }
}

#[inline(always)]
fn normalise<T: Float>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    finish: Epilogue<'_, T>,
    y: &mut crate::columns::ColumnBlock<'_, T>,
) {
    let small = small_planes::suits(part.sizes.plane);
    with_activation!(finish.activation, A => if small {
        small_planes::normalise::<T, A>(part, affine, finish.residual, y);
    } else {
        planes::normalise::<T, A>(part, affine, finish.residual, y);
    });
}

fn check_maps<T>(
    kernel: &'static str,
    sizes: Sizes,
    x: &[T],
    finish: &Epilogue<'_, T>,
    y: &[T],
) -> Result<()> {
    check_len(kernel, "x", sizes.len(), x.len())?;
    check_len(kernel, "y", sizes.len(), y.len())?;
    finish.residual.map_or(Ok(()), |residual| check_len(kernel, "residual", sizes.len(), residual.len()))
}

/// Computes y = act((x − mean)·inv_std·gamma + beta + residual) with given statistics.
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_forward<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    affine: Affine<'_, T>,
    finish: Epilogue<'_, T>,
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_forward";
    let sizes = Sizes { batch, channels, plane };
    check_maps(KERNEL, sizes, x, &finish, y)?;
    affine.check(KERNEL, channels)?;
    let per_task = sizes.per_task(context);
    let items = column_blocks(y, sizes.row(), per_task * plane).into_iter().enumerate().collect();
    context.run_each(items, |(task, mut y)| {
        let first = task * per_task;
        let part = Part { sizes, first, count: per_task.min(channels - first), x };
        context.simd(
            #[inline(always)]
            || normalise(part, affine.some(first, part.count), finish, &mut y),
        );
    });
    Ok(())
}

/// The results of a batch norm in training. All elements are overwritten.
#[derive(Debug)]
pub struct BatchNormOutput<'a, T> {
    /// The normalised values; as long as the input.
    pub y: &'a mut [T],
    /// The mean of each channel.
    pub mean: &'a mut [f64],
    /// The sum of squared deviations of each channel.
    pub moment: &'a mut [f64],
}

/// Computes batch norm in training: the statistics of each channel, as [`batch_norm_moments`] does, and
/// y = act((x − mean)/√(moment/(N·P) + eps)·gamma + beta + residual).
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_train<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    input: NormInput<'_, T>,
    finish: Epilogue<'_, T>,
    to: BatchNormOutput<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "batch_norm_train";
    let NormInput { x, gamma, beta, eps } = input;
    let BatchNormOutput { y, mean, moment } = to;
    let sizes = Sizes { batch, channels, plane };
    check_maps(KERNEL, sizes, x, &finish, y)?;
    for (name, len) in
        [("gamma", gamma.len()), ("beta", beta.len()), ("mean", mean.len()), ("moment", moment.len())]
    {
        check_len(KERNEL, name, channels, len)?;
    }
    let per_task = sizes.per_task(context);
    let statistics = mean.chunks_mut(per_task).zip(moment.chunks_mut(per_task));
    let items = column_blocks(y, sizes.row(), per_task * plane).into_iter().zip(statistics).enumerate();
    context.run_each(items.collect(), |(task, (mut y, (mean, moment)))| {
        let first = task * per_task;
        // One channel at a time, or one chunk of small ones, while it is in the cache.
        let at_once = if small_planes::suits(plane) { small_planes::CHUNK / plane } else { 1 };
        let chunks = mean.chunks_mut(at_once).zip(moment.chunks_mut(at_once));
        for (index, (mean, moment)) in chunks.enumerate() {
            let offset = index * at_once;
            let part = Part { sizes, first: first + offset, count: mean.len(), x };
            let mut rounded = [[T::ZERO; small_planes::CHUNK]; 2];
            context.simd(
                #[inline(always)]
                || {
                    moments(part, mean, moment);
                    for (i, (mean, moment)) in mean.iter().zip(&*moment).enumerate() {
                        rounded[0][i] = T::from_f64(*mean);
                        rounded[1][i] = T::from_f64(1.0 / (moment / sizes.count() + eps).sqrt());
                    }
                    let affine = Affine { mean: &rounded[0], inv_std: &rounded[1], gamma, beta };
                    let affine = Affine {
                        gamma: &gamma[part.first..part.first + part.count],
                        beta: &beta[part.first..part.first + part.count],
                        ..affine
                    };
                    normalise(part, affine, finish, &mut y.some(offset * plane, part.count * plane));
                },
            );
        }
    });
    Ok(())
}

impl<'a, T> Affine<'a, T> {
    pub(super) fn check(&self, kernel: &'static str, channels: usize) -> Result<()> {
        let all =
            [("mean", self.mean), ("inv_std", self.inv_std), ("gamma", self.gamma), ("beta", self.beta)];
        all.into_iter().try_for_each(|(name, values)| check_len(kernel, name, channels, values.len()))
    }

    /// The part of some channels.
    pub(super) fn some(&self, first: usize, count: usize) -> Self {
        let cut = |values: &'a [T]| &values[first..first + count];
        Self {
            mean: cut(self.mean),
            inv_std: cut(self.inv_std),
            gamma: cut(self.gamma),
            beta: cut(self.beta),
        }
    }
}

impl Activation {
    /// True for [`Activation::None`].
    pub fn is_none(self) -> bool {
        self == Self::None
    }
}
