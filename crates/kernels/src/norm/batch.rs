//! Batch normalisation over [N, C, P] (Ioffe & Szegedy 2015), in halves.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{sum_slice, sum_squared_deviations};

use super::small_planes::{self, repeat};

/// An activation applied in the same pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// None.
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
}

impl Activation {
    #[inline(always)]
    fn apply<T: Float>(self, x: T) -> T {
        match self {
            Self::None => x,
            Self::Relu => x.max(T::ZERO),
            Self::Relu6 => x.max(T::ZERO).min(T::from_f64(6.0)),
        }
    }
}

/// Runs `f(channel)` for every channel, a thread taking several, and stores the pair that it gives.
fn per_channel(
    context: &Context,
    channels: usize,
    first: &mut [f64],
    second: &mut [f64],
    f: impl Fn(usize) -> (f64, f64) + Sync + Send,
) {
    let mut both = vec![(0.0, 0.0); channels];
    let per_task = channels.div_ceil(context.threads() * 4).max(1);
    context.run_chunks(&mut both, per_task, |task, both| {
        for (offset, pair) in both.iter_mut().enumerate() {
            *pair = f(task * per_task + offset);
        }
    });
    for (channel, (a, b)) in both.into_iter().enumerate() {
        first[channel] = a;
        second[channel] = b;
    }
}

/// The mean of each channel and the sum of squared deviations from it (Σ(x − mean)²), each `[C]`.
///
/// With n = N·P elements a channel, groups a and b combine as mean = (nₐ·meanₐ + n_b·mean_b)/n and
/// M2 = M2ₐ + M2_b + (meanₐ − mean_b)²·nₐ·n_b/n (Chan et al. 1983).
///
/// # Errors
/// If a length is not the shape's.
pub fn batch_norm_moments<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    mean: &mut [f64],
    moment: &mut [f64],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_moments";
    check_len(KERNEL, "x", batch * channels * plane, x.len())?;
    check_len(KERNEL, "mean", channels, mean.len())?;
    check_len(KERNEL, "moment", channels, moment.len())?;
    let count = (batch * plane).max(1) as f64;
    if small_planes::suits(plane) {
        let dims = [batch, channels, plane];
        small_planes::sums(context, dims, mean, moment, |start, _, a: &mut [T], _| {
            context.simd(|| a.iter_mut().zip(&x[start..]).for_each(|(a, x)| *a += *x));
        });
        mean.iter_mut().for_each(|mean| *mean /= count);
        let rounded = repeat(mean.iter().map(|mean| T::from_f64(*mean)), plane);
        small_planes::sums(
            context,
            dims,
            &mut vec![0.0; channels],
            moment,
            |start, column, _, b: &mut [T]| {
                context.simd(|| {
                    for ((b, x), mean) in b.iter_mut().zip(&x[start..]).zip(&rounded[column..]) {
                        *b += (*x - *mean) * (*x - *mean);
                    }
                });
            },
        );
        for ((moment, mean), rounded) in moment.iter_mut().zip(mean).zip(rounded.chunks_exact(plane.max(1))) {
            let off = *mean - rounded[0].to_f64();
            *moment = (*moment - count * off * off).max(0.0);
        }
        return Ok(());
    }
    per_channel(context, channels, mean, moment, |channel| {
        context.simd(|| {
            let planes = || (0..batch).map(|n| &x[(n * channels + channel) * plane..][..plane]);
            let mean = planes().map(sum_slice).sum::<f64>() / count;
            // Deviations from the rounded mean; the second term corrects for the rounding.
            let rounded = T::from_f64(mean);
            let moment: f64 = planes().map(|p| sum_squared_deviations(p, rounded)).sum();
            let off = mean - rounded.to_f64();
            (mean, (moment - count * off * off).max(0.0))
        })
    });
    Ok(())
}

/// y = act((x − mean)·inv_std·gamma + beta); `mean`, `inv_std`, `gamma`, `beta` are `[C]`.
///
/// # Errors
/// If a length is not the shape's.
pub fn batch_norm_forward<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    mean: &[T],
    inv_std: &[T],
    gamma: &[T],
    beta: &[T],
    activation: Activation,
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_forward";
    check_len(KERNEL, "x", batch * channels * plane, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    for (name, values) in [("mean", mean), ("inv_std", inv_std), ("gamma", gamma), ("beta", beta)] {
        check_len(KERNEL, name, channels, values.len())?;
    }
    if small_planes::suits(plane) {
        let factor = repeat(inv_std.iter().zip(gamma).map(|(inv_std, gamma)| *inv_std * *gamma), plane);
        let (mean, shift) = (repeat(mean.iter().copied(), plane), repeat(beta.iter().copied(), plane));
        small_planes::each_image(context, channels * plane, y, |start, y| {
            context.simd(|| {
                let columns = mean.iter().zip(&factor).zip(&shift);
                for ((y, x), ((mean, factor), shift)) in y.iter_mut().zip(&x[start..]).zip(columns) {
                    *y = activation.apply((*x - *mean) * *factor + *shift);
                }
            });
        });
        return Ok(());
    }
    let piece = context.piece(x.len(), plane);
    context.run_chunks(y, piece, |task, y| {
        let start = task * piece;
        context.simd(|| {
            let planes = y.chunks_mut(plane.max(1)).zip(x[start..].chunks(plane.max(1)));
            for (index, (y, x)) in planes.enumerate() {
                let channel = (start / plane.max(1) + index) % channels;
                let factor = inv_std[channel] * gamma[channel];
                let (mean, shift) = (mean[channel], beta[channel]);
                // One loop an activation, so that none has a branch inside.
                match activation {
                    Activation::None => {
                        y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - mean) * factor + shift);
                    }
                    _ => y.iter_mut().zip(x).for_each(|(y, x)| {
                        *y = activation.apply((*x - mean) * factor + shift);
                    }),
                }
            }
        });
    });
    Ok(())
}

/// Σ dy and Σ dy·x̂ of each channel, with x̂ = (x − mean)·inv_std; the gradients of beta and gamma.
///
/// # Errors
/// If a length is not the shape's.
pub fn batch_norm_backward_sums<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    dy: &[T],
    mean: &[T],
    inv_std: &[T],
    sum_dy: &mut [f64],
    sum_dy_xhat: &mut [f64],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_backward_sums";
    check_len(KERNEL, "x", batch * channels * plane, x.len())?;
    check_len(KERNEL, "dy", x.len(), dy.len())?;
    check_len(KERNEL, "mean", channels, mean.len())?;
    check_len(KERNEL, "inv_std", channels, inv_std.len())?;
    check_len(KERNEL, "sum_dy", channels, sum_dy.len())?;
    check_len(KERNEL, "sum_dy_xhat", channels, sum_dy_xhat.len())?;
    if small_planes::suits(plane) {
        let dims = [batch, channels, plane];
        let mean = repeat(mean.iter().copied(), plane);
        small_planes::sums(context, dims, sum_dy, sum_dy_xhat, |start, column, a: &mut [T], b: &mut [T]| {
            context.simd(|| {
                let columns = a.iter_mut().zip(b).zip(&mean[column..]);
                for (((a, b), mean), (x, dy)) in columns.zip(x[start..].iter().zip(&dy[start..])) {
                    *a += *dy;
                    *b += *dy * (*x - *mean);
                }
            });
        });
        sum_dy_xhat.iter_mut().zip(inv_std).for_each(|(sum, inv_std)| *sum *= inv_std.to_f64());
        return Ok(());
    }
    per_channel(context, channels, sum_dy, sum_dy_xhat, |channel| {
        context.simd(|| {
            let (mut plain, mut product) = (0.0, 0.0);
            for n in 0..batch {
                let start = (n * channels + channel) * plane;
                let (x, dy) = (&x[start..start + plane], &dy[start..start + plane]);
                let (a, b) = sums_of_plane(x, dy, mean[channel]);
                plain += a;
                product += b;
            }
            (plain, product * inv_std[channel].to_f64())
        })
    });
    Ok(())
}

/// Σ dy and Σ dy·(x − mean) in one pass.
#[inline(always)]
fn sums_of_plane<T: Float>(x: &[T], dy: &[T], mean: T) -> (f64, f64) {
    const LANES: usize = 16;
    let (mut plain, mut product) = (0.0, 0.0);
    for (x, dy) in x.chunks(256).zip(dy.chunks(256)) {
        let ((x_whole, x_tail), (dy_whole, dy_tail)) = (x.as_chunks::<LANES>(), dy.as_chunks::<LANES>());
        let (mut a, mut b) = ([T::ZERO; LANES], [T::ZERO; LANES]);
        for (x, dy) in x_whole.iter().zip(dy_whole) {
            for lane in 0..LANES {
                a[lane] += dy[lane];
                b[lane] += dy[lane] * (x[lane] - mean);
            }
        }
        for lane in 0..LANES {
            plain += a[lane].to_f64();
            product += b[lane].to_f64();
        }
        for (x, dy) in x_tail.iter().zip(dy_tail) {
            plain += dy.to_f64();
            product += (*dy * (*x - mean)).to_f64();
        }
    }
    (plain, product)
}

/// dx = gamma·inv_std·(dy − mean_dy − x̂·mean_dy_xhat), where the means are over all elements that the
/// statistics were taken of (zeros if the statistics were fixed).
///
/// # Errors
/// If a length is not the shape's.
pub fn batch_norm_backward_input<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    x: &[T],
    dy: &[T],
    mean: &[T],
    inv_std: &[T],
    gamma: &[T],
    mean_dy: &[f64],
    mean_dy_xhat: &[f64],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_backward_input";
    check_len(KERNEL, "x", batch * channels * plane, x.len())?;
    check_len(KERNEL, "dy", x.len(), dy.len())?;
    check_len(KERNEL, "dx", x.len(), dx.len())?;
    for (name, len) in [
        ("mean", mean.len()),
        ("inv_std", inv_std.len()),
        ("gamma", gamma.len()),
        ("mean_dy", mean_dy.len()),
        ("mean_dy_xhat", mean_dy_xhat.len()),
    ] {
        check_len(KERNEL, name, channels, len)?;
    }
    if small_planes::suits(plane) {
        let scale = repeat(gamma.iter().zip(inv_std).map(|(gamma, inv_std)| *gamma * *inv_std), plane);
        let slopes = mean_dy_xhat.iter().zip(inv_std);
        let slope = repeat(slopes.map(|(mean, inv_std)| T::from_f64(*mean * inv_std.to_f64())), plane);
        let mean = repeat(mean.iter().copied(), plane);
        let mean_dy = repeat(mean_dy.iter().map(|mean| T::from_f64(*mean)), plane);
        small_planes::each_image(context, channels * plane, dx, |start, dx| {
            context.simd(|| {
                let columns = scale.iter().zip(&slope).zip(mean.iter().zip(&mean_dy));
                let elements = dx.iter_mut().zip(x[start..].iter().zip(&dy[start..]));
                for ((dx, (x, dy)), ((scale, slope), (mean, mean_dy))) in elements.zip(columns) {
                    *dx = *scale * (*dy - *mean_dy - (*x - *mean) * *slope);
                }
            });
        });
        return Ok(());
    }
    let piece = context.piece(x.len(), plane);
    context.run_chunks(dx, piece, |task, dx| {
        let start = task * piece;
        context.simd(|| {
            let width = plane.max(1);
            let planes = dx.chunks_mut(width).zip(x[start..].chunks(width)).zip(dy[start..].chunks(width));
            for (index, ((dx, x), dy)) in planes.enumerate() {
                let c = (start / width + index) % channels;
                let scale = gamma[c] * inv_std[c];
                let (mean, mean_dy) = (mean[c], T::from_f64(mean_dy[c]));
                let slope = T::from_f64(mean_dy_xhat[c] * inv_std[c].to_f64());
                for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = scale * (*dy - mean_dy - (*x - mean) * slope);
                }
            }
        });
    });
    Ok(())
}
