//! Batch norm where planes are smaller than a vector: the loops run over channels and pixels together.
//!
//! Images [C, P] are rows of C·P columns. What belongs to a channel is repeated for each of its pixels, and sums are
//! kept column by column until all images are through.

use crate::context::Context;
use crate::float::Float;

/// Whether planes are small; from 16 elements on a plane fills a vector by itself.
pub(super) fn suits(plane: usize) -> bool {
    (1..16).contains(&plane)
}

/// Images that are added in the element type before the sums move to f64.
const IMAGES: usize = 16;

/// Every channel's value once for each pixel.
pub(super) fn repeat<T: Copy>(values: impl Iterator<Item = T>, plane: usize) -> Vec<T> {
    values.flat_map(|value| std::iter::repeat_n(value, plane)).collect()
}

/// Two sums for every channel. `add(start, column, a, b)` adds the elements from `start` on, whose first is in
/// column `column`, to the sums of as many columns.
pub(super) fn sums<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    first: &mut [f64],
    second: &mut [f64],
    add: impl Fn(usize, usize, &mut [T], &mut [T]) + Sync + Send,
) {
    let mut both = vec![(0.0, 0.0); channels];
    let per_task = channels.div_ceil(context.threads()).next_multiple_of(16);
    context.run_chunks(&mut both, per_task, |task, both| {
        let (column, width) = (task * per_task * plane, both.len() * plane);
        let (mut a, mut b) = (vec![T::ZERO; width], vec![T::ZERO; width]);
        for images in (0..batch).step_by(IMAGES) {
            a.fill(T::ZERO);
            b.fill(T::ZERO);
            for image in images..(images + IMAGES).min(batch) {
                add(image * channels * plane + column, column, &mut a, &mut b);
            }
            let pixels = a.chunks_exact(plane).zip(b.chunks_exact(plane));
            for (both, (a, b)) in both.iter_mut().zip(pixels) {
                both.0 += a.iter().map(|a| a.to_f64()).sum::<f64>();
                both.1 += b.iter().map(|b| b.to_f64()).sum::<f64>();
            }
        }
    });
    for (channel, (a, b)) in both.into_iter().enumerate() {
        first[channel] = a;
        second[channel] = b;
    }
}

/// Calls `f(start, image)` for every image of `out`, on the threads.
pub(super) fn each_image<T: Float>(
    context: &Context,
    width: usize,
    out: &mut [T],
    f: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    let piece = context.piece(out.len(), width);
    context.run_chunks(out, piece, |task, out| {
        for (index, image) in out.chunks_mut(width.max(1)).enumerate() {
            f(task * piece + index * width, image);
        }
    });
}
