//! Loops over planes that are smaller than a vector: channels and pixels together.
//!
//! Images [C, P] are rows of C·P columns, processed in chunks of columns. The numbers of a channel are repeated for each of
//! its pixels. Sums are kept column by column until the last image.

use super::{Act, Affine, Part};
use crate::columns::ColumnBlock;
use crate::float::Float;

/// True for planes of fewer than 16 elements; others fill a vector.
pub(super) fn suits(plane: usize) -> bool {
    (1..16).contains(&plane)
}

/// The most columns of a chunk: four vectors.
pub(super) const CHUNK: usize = 64;

/// Images added in the element type before the sums move to f64.
const IMAGES: usize = 16;

/// A number for each of some columns.
type Columns<T> = [T; CHUNK];

/// The chunks of a part, of whole channels: the first channel of each and its number of channels.
#[inline(always)]
fn chunks<T>(part: &Part<'_, T>) -> impl Iterator<Item = (usize, usize)> + use<T> {
    let (count, per_chunk) = (part.count, CHUNK / part.sizes.plane);
    (0..count).step_by(per_chunk).map(move |first| (first, per_chunk.min(count - first)))
}

/// Repeats every channel's number for each pixel.
#[inline(always)]
fn repeat<T: Float>(values: &[T], plane: usize) -> Columns<T> {
    let mut columns = [T::ZERO; CHUNK];
    for (columns, value) in columns.chunks_exact_mut(plane).zip(values) {
        columns.fill(*value);
    }
    columns
}

/// Adds the columns of every channel to its sum.
#[inline(always)]
fn add_pixels<T: Float>(columns: &Columns<T>, plane: usize, sums: &mut [f64]) {
    for (columns, sum) in columns.chunks_exact(plane).zip(sums) {
        for value in columns {
            *sum += value.to_f64();
        }
    }
}

/// Adds the values of a row to the sums of their columns; with `means` the squares of their deviations.
#[inline(always)]
fn add_columns<T: Float>(x: &[T], means: Option<&[T]>, sums: &mut [T]) {
    let columns = sums.iter_mut().zip(x);
    match means {
        Some(means) => {
            columns.zip(means).for_each(|((sum, x), mean)| *sum += (*x - *mean) * (*x - *mean));
        }
        None => columns.for_each(|(sum, x)| *sum += *x),
    }
}

/// Runs `$body` with `$w` as the width, a compile-time constant ([`CHUNK`]) in full chunks.
macro_rules! each_width {
    ($width:expr, $w:ident => $body:expr) => {
        if $width == CHUNK {
            const W: usize = CHUNK;
            let $w = W;
            $body
        } else {
            let $w = $width;
            $body
        }
    };
}

/// Computes the mean of each channel and the sum of its squared deviations from it.
#[inline(always)]
pub(super) fn moments<T: Float>(part: Part<'_, T>, mean: &mut [f64], moment: &mut [f64]) {
    let (plane, batch, count) = (part.sizes.plane, part.sizes.batch, part.sizes.count().max(1.0));
    for (first, channels) in chunks(&part) {
        let (mean, moment) = (&mut mean[first..first + channels], &mut moment[first..first + channels]);
        mean.fill(0.0);
        moment.fill(0.0);
        let mut rounded = [T::ZERO; CHUNK];
        for deviations in [false, true] {
            for images in (0..batch).step_by(IMAGES) {
                let mut sums = [T::ZERO; CHUNK];
                for image in images..(images + IMAGES).min(batch) {
                    each_width!(channels * plane, w => {
                        let x = &part.row_of(part.x, image)[first * plane..][..w];
                        add_columns(x, deviations.then_some(&rounded[..w]), &mut sums[..w]);
                    });
                }
                add_pixels(&sums, plane, if deviations { moment } else { mean });
            }
            if !deviations {
                let mut values = [T::ZERO; CHUNK];
                for (value, mean) in values.iter_mut().zip(&mut *mean) {
                    *mean /= count;
                    *value = T::from_f64(*mean);
                }
                rounded = repeat(&values[..channels], plane);
            }
        }
        for (channel, moment) in moment.iter_mut().enumerate() {
            let off = mean[channel] - rounded[channel * plane].to_f64();
            *moment = (*moment - count * off * off).max(0.0);
        }
    }
}

/// [`Affine`] for columns.
struct ColumnAffine<T> {
    mean: Columns<T>,
    factor: Columns<T>,
    shift: Columns<T>,
}

#[inline(always)]
fn column_affine<T: Float>(
    affine: Affine<'_, T>,
    first: usize,
    channels: usize,
    plane: usize,
) -> ColumnAffine<T> {
    let mut factors = [T::ZERO; CHUNK];
    for (i, factor) in factors.iter_mut().enumerate().take(channels) {
        *factor = affine.inv_std[first + i] * affine.gamma[first + i];
    }
    ColumnAffine {
        mean: repeat(&affine.mean[first..first + channels], plane),
        factor: repeat(&factors[..channels], plane),
        shift: repeat(&affine.beta[first..first + channels], plane),
    }
}

#[inline(always)]
pub(super) fn normalise<T: Float, A: Act>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    residual: Option<&[T]>,
    y: &mut ColumnBlock<'_, T>,
) {
    let plane = part.sizes.plane;
    for (first, channels) in chunks(&part) {
        let ColumnAffine { mean, factor, shift } = column_affine(affine, first, channels, plane);
        for image in 0..part.sizes.batch {
            each_width!(channels * plane, w => {
                let x = &part.row_of(part.x, image)[first * plane..][..w];
                let y = &mut y.row(image)[first * plane..][..w];
                match residual {
                    None => {
                        for i in 0..w {
                            y[i] = A::apply((x[i] - mean[i]) * factor[i] + shift[i]);
                        }
                    }
                    Some(residual) => {
                        let residual = &part.row_of(residual, image)[first * plane..][..w];
                        for i in 0..w {
                            y[i] = A::apply((x[i] - mean[i]) * factor[i] + shift[i] + residual[i]);
                        }
                    }
                }
            });
        }
    }
}

/// The activation's argument for columns; the identity if the map is the output.
#[inline(always)]
fn argument<T: Float>(
    affine: Affine<'_, T>,
    first: usize,
    channels: usize,
    plane: usize,
    from_output: bool,
) -> ColumnAffine<T> {
    if from_output {
        return ColumnAffine { mean: [T::ZERO; CHUNK], factor: [T::ONE; CHUNK], shift: [T::ZERO; CHUNK] };
    }
    column_affine(affine, first, channels, plane)
}

#[inline(always)]
pub(super) fn sums<T: Float, A: Act>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    output: Option<&[T]>,
    dy: &[T],
    sum_dy: &mut [f64],
    sum_dy_xhat: &mut [f64],
) {
    let (plane, batch) = (part.sizes.plane, part.sizes.batch);
    sum_dy.fill(0.0);
    sum_dy_xhat.fill(0.0);
    for (first, channels) in chunks(&part) {
        let argument = argument(affine, first, channels, plane, output.is_some());
        let mean = repeat(&affine.mean[first..first + channels], plane);
        for images in (0..batch).step_by(IMAGES) {
            let (mut a, mut b) = ([T::ZERO; CHUNK], [T::ZERO; CHUNK]);
            for image in images..(images + IMAGES).min(batch) {
                each_width!(channels * plane, w => {
                    let x = &part.row_of(part.x, image)[first * plane..][..w];
                    let seen = output.map_or(x, |output| &part.row_of(output, image)[first * plane..][..w]);
                    let dy = &part.row_of(dy, image)[first * plane..][..w];
                    for i in 0..w {
                        let value = (seen[i] - argument.mean[i]) * argument.factor[i] + argument.shift[i];
                        let dy = A::backward(value, dy[i]);
                        a[i] += dy;
                        b[i] += dy * (x[i] - mean[i]);
                    }
                });
            }
            add_pixels(&a, plane, &mut sum_dy[first..first + channels]);
            add_pixels(&b, plane, &mut sum_dy_xhat[first..first + channels]);
        }
    }
    for (sum, inv_std) in sum_dy_xhat.iter_mut().zip(affine.inv_std) {
        *sum *= inv_std.to_f64();
    }
}

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
    for (first, channels) in chunks(&part) {
        let argument = argument(affine, first, channels, plane, output.is_some());
        let (mut mean_dy, mut slope, mut scale) = ([T::ZERO; CHUNK], [T::ZERO; CHUNK], [T::ZERO; CHUNK]);
        for i in 0..channels {
            let channel = first + i;
            mean_dy[i] = T::from_f64(means[0][channel]);
            slope[i] = T::from_f64(means[1][channel] * affine.inv_std[channel].to_f64());
            scale[i] = affine.gamma[channel] * affine.inv_std[channel];
        }
        let [mean_dy, slope, scale] =
            [mean_dy, slope, scale].map(|values| repeat(&values[..channels], plane));
        let mean = repeat(&affine.mean[first..first + channels], plane);
        for image in 0..part.sizes.batch {
            each_width!(channels * plane, w => {
                let x = &part.row_of(part.x, image)[first * plane..][..w];
                let seen = output.map_or(x, |output| &part.row_of(output, image)[first * plane..][..w]);
                let dy = &part.row_of(dy, image)[first * plane..][..w];
                let mut values = [T::ZERO; CHUNK];
                for i in 0..w {
                    let value = (seen[i] - argument.mean[i]) * argument.factor[i] + argument.shift[i];
                    values[i] = A::backward(value, dy[i]);
                }
                if let Some(masked) = &mut masked {
                    masked.row(image)[first * plane..][..w].copy_from_slice(&values[..w]);
                }
                let dx = &mut dx.row(image)[first * plane..][..w];
                for i in 0..w {
                    dx[i] = scale[i] * (values[i] - mean_dy[i] - (x[i] - mean[i]) * slope[i]);
                }
            });
        }
    }
}
