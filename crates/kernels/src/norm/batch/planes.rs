//! Loops over planes that are larger than a vector: the numbers of a channel are constant in a plane.

use super::{Act, Affine, Part};
use crate::columns::ColumnBlock;
use crate::float::Float;
use crate::reduce::{sum_slice, sum_squared_deviations};

/// Computes the mean of each channel and the sum of squared deviations from it.
#[inline(always)]
pub(super) fn moments<T: Float>(part: Part<'_, T>, mean: &mut [f64], moment: &mut [f64]) {
    let (plane, count) = (part.sizes.plane, part.sizes.count().max(1.0));
    for (channel, (mean, moment)) in mean.iter_mut().zip(moment).enumerate() {
        let range = channel * plane..(channel + 1) * plane;
        let mut sum = 0.0;
        for image in 0..part.sizes.batch {
            sum += sum_slice(&part.row_of(part.x, image)[range.clone()]);
        }
        *mean = sum / count;
        // Deviations from the rounded mean; the second term corrects for the rounding.
        let rounded = T::from_f64(*mean);
        let mut sum = 0.0;
        for image in 0..part.sizes.batch {
            sum += sum_squared_deviations(&part.row_of(part.x, image)[range.clone()], rounded);
        }
        let off = *mean - rounded.to_f64();
        *moment = (sum - count * off * off).max(0.0);
    }
}

/// Computes y = act((x − mean)·inv_std·gamma + beta + residual); `affine` has the part's channels.
#[inline(always)]
pub(super) fn normalise<T: Float, A: Act>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    residual: Option<&[T]>,
    y: &mut ColumnBlock<'_, T>,
) {
    let plane = part.sizes.plane;
    for image in 0..part.sizes.batch {
        let x = part.row_of(part.x, image);
        let residual = residual.map(|residual| part.row_of(residual, image));
        let y = y.row(image);
        for channel in 0..part.count {
            let range = channel * plane..(channel + 1) * plane;
            let factor = affine.inv_std[channel] * affine.gamma[channel];
            let (mean, shift) = (affine.mean[channel], affine.beta[channel]);
            let (x, y) = (&x[range.clone()], &mut y[range.clone()]);
            match residual {
                None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = A::apply((*x - mean) * factor + shift);
                    }
                }
                Some(residual) => {
                    for ((y, x), residual) in y.iter_mut().zip(x).zip(&residual[range]) {
                        *y = A::apply((*x - mean) * factor + shift + *residual);
                    }
                }
            }
        }
    }
}

/// The argument of an activation as a function of a map's values: (value − mean)·factor + shift.
#[derive(Clone, Copy)]
struct Argument<T> {
    mean: T,
    factor: T,
    shift: T,
}

impl<T: Float> Argument<T> {
    /// The function of a channel; the identity if the map is the output.
    #[inline(always)]
    fn new(affine: Affine<'_, T>, channel: usize, from_output: bool) -> Self {
        if from_output {
            return Self { mean: T::ZERO, factor: T::ONE, shift: T::ZERO };
        }
        Self {
            mean: affine.mean[channel],
            factor: affine.inv_std[channel] * affine.gamma[channel],
            shift: affine.beta[channel],
        }
    }

    #[inline(always)]
    fn of(self, value: T) -> T {
        (value - self.mean) * self.factor + self.shift
    }
}

/// Computes Σ dy and Σ dy·x̂ of each channel, with dy zero where the activation blocked it.
#[inline(always)]
pub(super) fn sums<T: Float, A: Act>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    output: Option<&[T]>,
    dy: &[T],
    sum_dy: &mut [f64],
    sum_dy_xhat: &mut [f64],
) {
    let plane = part.sizes.plane;
    for channel in 0..part.count {
        let range = channel * plane..(channel + 1) * plane;
        let argument = Argument::new(affine, channel, output.is_some());
        let (mut plain, mut product) = (0.0, 0.0);
        for image in 0..part.sizes.batch {
            let x = &part.row_of(part.x, image)[range.clone()];
            let seen = output.map_or(x, |output| &part.row_of(output, image)[range.clone()]);
            let dy = &part.row_of(dy, image)[range.clone()];
            let (a, b) = sums_of_plane::<T, A>(x, seen, dy, affine.mean[channel], argument);
            plain += a;
            product += b;
        }
        sum_dy[channel] = plain;
        sum_dy_xhat[channel] = product * affine.inv_std[channel].to_f64();
    }
}

/// Computes Σ dy and Σ dy·(x − mean) in one pass.
#[inline(always)]
fn sums_of_plane<T: Float, A: Act>(
    x: &[T],
    seen: &[T],
    dy: &[T],
    mean: T,
    argument: Argument<T>,
) -> (f64, f64) {
    const LANES: usize = 16;
    let (mut plain, mut product) = (0.0, 0.0);
    for ((x, seen), dy) in x.chunks(256).zip(seen.chunks(256)).zip(dy.chunks(256)) {
        let ((x_whole, x_tail), (dy_whole, dy_tail)) = (x.as_chunks::<LANES>(), dy.as_chunks::<LANES>());
        let (seen_whole, seen_tail) = seen.as_chunks::<LANES>();
        let (mut a, mut b) = ([T::ZERO; LANES], [T::ZERO; LANES]);
        for ((x, seen), dy) in x_whole.iter().zip(seen_whole).zip(dy_whole) {
            for lane in 0..LANES {
                let dy = A::backward(argument.of(seen[lane]), dy[lane]);
                a[lane] += dy;
                b[lane] += dy * (x[lane] - mean);
            }
        }
        for lane in 0..LANES {
            plain += a[lane].to_f64();
            product += b[lane].to_f64();
        }
        for ((x, seen), dy) in x_tail.iter().zip(seen_tail).zip(dy_tail) {
            let dy = A::backward(argument.of(*seen), *dy);
            plain += dy.to_f64();
            product += (dy * (*x - mean)).to_f64();
        }
    }
    (plain, product)
}

/// Computes dx = gamma·inv_std·(dy − mean_dy − x̂·mean_dy_xhat) with masked dy, and writes the masked dy to `masked`.
#[inline(always)]
pub(super) fn input<T: Float, A: Act>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    output: Option<&[T]>,
    dy: &[T],
    means: [&[f64]; 2],
    dx: &mut ColumnBlock<'_, T>,
    mut masked: Option<&mut ColumnBlock<'_, T>>,
) {
    let plane = part.sizes.plane;
    for image in 0..part.sizes.batch {
        let x = part.row_of(part.x, image);
        let seen = output.map_or(x, |output| part.row_of(output, image));
        let dy = part.row_of(dy, image);
        let dx = dx.row(image);
        let mut masked = masked.as_mut().map(|masked| masked.row(image));
        #[allow(clippy::needless_range_loop, reason = "the channel has a place in many slices")]
        for channel in 0..part.count {
            let range = channel * plane..(channel + 1) * plane;
            let argument = Argument::new(affine, channel, output.is_some());
            let scale = affine.gamma[channel] * affine.inv_std[channel];
            let (mean, mean_dy) = (affine.mean[channel], T::from_f64(means[0][channel]));
            let slope = T::from_f64(means[1][channel] * affine.inv_std[channel].to_f64());
            let maps = x[range.clone()].iter().zip(&seen[range.clone()]).zip(&dy[range.clone()]);
            match &mut masked {
                None => {
                    for (dx, ((x, seen), dy)) in dx[range].iter_mut().zip(maps) {
                        let dy = A::backward(argument.of(*seen), *dy);
                        *dx = scale * (dy - mean_dy - (*x - mean) * slope);
                    }
                }
                Some(masked) => {
                    let to = dx[range.clone()].iter_mut().zip(&mut masked[range]);
                    for ((dx, masked), ((x, seen), dy)) in to.zip(maps) {
                        *masked = A::backward(argument.of(*seen), *dy);
                        *dx = scale * (*masked - mean_dy - (*x - mean) * slope);
                    }
                }
            }
        }
    }
}
