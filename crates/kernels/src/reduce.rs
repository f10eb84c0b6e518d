//! Sums over slices, in an order that does not depend on threads.

use crate::context::Context;
use crate::float::Float;

/// Elements summed in the element type before the sum moves to f64.
const CHUNK: usize = 256;
const LANES: usize = 16;

/// Computes Σ f(x) in f64: lanes within chunks, chunks in order.
#[inline(always)]
fn sum_by<T: Float>(values: &[T], f: impl Fn(T) -> T) -> f64 {
    let mut total = 0.0;
    for chunk in values.chunks(CHUNK) {
        let (whole, tail) = chunk.as_chunks::<LANES>();
        let mut lanes = [T::ZERO; LANES];
        for values in whole {
            for lane in 0..LANES {
                lanes[lane] += f(values[lane]);
            }
        }
        let mut sum = 0.0;
        for lane in lanes {
            sum += lane.to_f64();
        }
        for value in tail {
            sum += f(*value).to_f64();
        }
        total += sum;
    }
    total
}

/// Σ x.
#[inline(always)]
pub(crate) fn sum_slice<T: Float>(values: &[T]) -> f64 {
    sum_by(values, |v| v)
}

/// Σ (x − mean)².
#[inline(always)]
pub(crate) fn sum_squared_deviations<T: Float>(values: &[T], mean: T) -> f64 {
    sum_by(values, |v| (v - mean) * (v - mean))
}

/// Σ a·b.
#[inline(always)]
pub(crate) fn dot_slice<T: Float>(a: &[T], b: &[T]) -> f64 {
    let mut total = 0.0;
    for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
        let (a_whole, a_tail) = a.as_chunks::<LANES>();
        let (b_whole, b_tail) = b.as_chunks::<LANES>();
        let mut lanes = [T::ZERO; LANES];
        for (a, b) in a_whole.iter().zip(b_whole) {
            for lane in 0..LANES {
                lanes[lane] += a[lane] * b[lane];
            }
        }
        let mut sum = 0.0;
        for lane in lanes {
            sum += lane.to_f64();
        }
        for (a, b) in a_tail.iter().zip(b_tail) {
            sum += a.to_f64() * b.to_f64();
        }
        total += sum;
    }
    total
}

/// Returns the sum of all elements.
pub fn sum<T: Float>(context: &Context, values: &[T]) -> f64 {
    in_pieces(context, values, sum_slice)
}

/// Returns the sum of the squares of all elements, squared and added in f64.
///
/// The sums of parts add up to it except for the rounding of f64, and almost always exactly after rounding to f32.
pub fn sum_of_squares<T: Float>(context: &Context, values: &[T]) -> f64 {
    in_pieces(context, values, wide_squares)
}

/// Σ x² in f64.
#[inline(always)]
fn wide_squares<T: Float>(values: &[T]) -> f64 {
    let (whole, tail) = values.as_chunks::<LANES>();
    let mut lanes = [0.0_f64; LANES];
    for values in whole {
        for lane in 0..LANES {
            let value = values[lane].to_f64();
            lanes[lane] += value * value;
        }
    }
    let tail = tail.iter().map(|value| value.to_f64() * value.to_f64());
    lanes.into_iter().chain(tail).sum()
}

/// Adds the results of fixed pieces in order.
fn in_pieces<T: Float>(context: &Context, values: &[T], f: impl Fn(&[T]) -> f64 + Sync + Send) -> f64 {
    const PIECE: usize = 1 << 16;
    let mut partial = vec![0.0; values.len().div_ceil(PIECE)];
    context.run_chunks(&mut partial, 1, |index, out| {
        let piece = &values[index * PIECE..((index + 1) * PIECE).min(values.len())];
        out[0] = context.simd(
            #[inline(always)]
            || f(piece),
        );
    });
    partial.iter().sum()
}

/// Multiplies every element by `factor`.
pub fn scale<T: Float>(context: &Context, factor: f64, values: &mut [T]) {
    let factor = T::from_f64(factor);
    let piece = context.piece(values.len(), 1);
    context.run_chunks(values, piece, |_, values| {
        context.simd(
            #[inline(always)]
            || values.iter_mut().for_each(|v| *v = *v * factor),
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_where_they_can_be_and_do_not_depend_on_threads() {
        for len in [0, 1, 15, 16, 17, 255, 256, 1000, 70_000, 200_001] {
            let values: Vec<f32> = (0..len).map(|i| (i % 7) as f32 - 3.0).collect();
            let exact: f64 = values.iter().map(|v| f64::from(*v)).sum();
            let squares: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            for threads in [1, 2, 3] {
                let context = Context::new(threads);
                assert_eq!(sum(&context, &values), exact, "{len} on {threads}");
                assert_eq!(sum_of_squares(&context, &values), squares, "{len} on {threads}");
            }
        }
    }

    #[test]
    fn long_sums_keep_their_accuracy() {
        let values = vec![0.1_f32; 10_000_000];
        let exact = f64::from(0.1_f32) * 1e7;
        let relative = (sum(&Context::new(2), &values) / exact - 1.0).abs();
        assert!(relative < 1e-6, "{relative:e}");
    }

    #[test]
    fn parts_have_the_squares_of_the_whole() {
        let values: Vec<f32> = (0..100_003).map(|i| (i as f32 * 0.37).sin()).collect();
        let context = Context::new(1);
        let whole = sum_of_squares(&context, &values);
        for parts in 2..6 {
            let cut = |part: usize| part * values.len() / parts;
            let sum: f64 =
                (0..parts).map(|part| sum_of_squares(&context, &values[cut(part)..cut(part + 1)])).sum();
            assert!((sum / whole - 1.0).abs() < 1e-14, "{parts} parts: {sum} and {whole}");
        }
    }

    #[test]
    fn scaling() {
        let mut values = vec![2.0_f64; 40_000];
        scale(&Context::new(2), 0.25, &mut values);
        assert!(values.iter().all(|v| *v == 0.5));
    }
}
