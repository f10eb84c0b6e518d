//! Products of one row, such as those of a model that writes one token after the other.
//!
//! Such a product reads each element of the matrix once, so it is as fast as memory. Threads take columns of the result, and
//! each column is summed in one order, so the bits do not depend on their number.

use half::bf16;

use super::Matrix;
use crate::bfloat::widen_bits;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// An element of a matrix that is multiplied as a `T`.
pub(super) trait Stored<T>: Copy + Send + Sync {
    fn wide(self) -> T;
}

impl<T: Float> Stored<T> for T {
    #[inline(always)]
    fn wide(self) -> T {
        self
    }
}

impl Stored<f32> for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        widen_bits(self.to_bits())
    }
}

/// Computes y = x·w for one row `x` of f32 and a matrix of bf16; sums are f32. A matrix of half the bytes takes about half the time.
///
/// # Errors
/// If a length does not match the sizes.
pub fn multiply_row_bf16(context: &Context, x: &[f32], w: Matrix<'_, bf16>, y: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "multiply_row_bf16";
    check_len(KERNEL, "x", w.rows, x.len())?;
    check_len(KERNEL, "y", w.cols, y.len())?;
    check_len(KERNEL, "w", w.rows * w.cols, w.data.len())?;
    multiply(context, x, w, y, false);
    Ok(())
}

/// Columns of a thread are a multiple of this.
const COLUMNS: usize = 64;

/// Products with fewer elements of b are left to the general kernels.
const LEAST: usize = 1 << 16;

/// Partial sums of a dot product.
const LANES: usize = 64;

/// Rows of b that are added together.
const TOGETHER: usize = 4;

/// True if a product of `rows` rows with b is one of these.
pub(super) fn applies<T>(rows: usize, b: &Matrix<'_, T>) -> bool {
    rows == 1 && b.rows * b.cols >= LEAST
}

/// Computes c = a·b, or c += a·b with `accumulate`, for one row `a`.
pub(super) fn multiply<T: Float, B: Stored<T>>(
    context: &Context,
    a: &[T],
    b: Matrix<'_, B>,
    c: &mut [T],
    accumulate: bool,
) {
    let (inputs, outputs) = (b.rows, b.cols);
    let piece = outputs.div_ceil(context.parts()).next_multiple_of(COLUMNS);
    context.run_chunks(c, piece, |task, c| {
        if !accumulate {
            c.fill(T::ZERO);
        }
        let first = task * piece;
        context.simd(
            #[inline(always)]
            || match b.transposed {
                true => add_dots(a, &b.data[first * inputs..], c),
                false => add_rows(a, &b.data[first..], outputs, c),
            },
        );
    });
}

/// Adds to each element of c the dot product of a with a row of b.
#[inline(always)]
fn add_dots<T: Float, B: Stored<T>>(a: &[T], b: &[B], c: &mut [T]) {
    for (c, b) in c.iter_mut().zip(b.chunks_exact(a.len())) {
        let mut sums = [T::ZERO; LANES];
        let (a_parts, b_parts) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let (a_rest, b_rest) = (a_parts.remainder(), b_parts.remainder());
        for (a, b) in a_parts.zip(b_parts) {
            for lane in 0..LANES {
                sums[lane] += a[lane] * b[lane].wide();
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
            width /= 2;
        }
        let rest: T = a_rest.iter().zip(b_rest).map(|(a, b)| *a * b.wide()).sum();
        *c += sums[0] + rest;
    }
}

/// Adds the rows of b, of which those of c are `stride` apart, times the elements of a.
#[inline(always)]
fn add_rows<T: Float, B: Stored<T>>(a: &[T], b: &[B], stride: usize, c: &mut [T]) {
    let width = c.len();
    let row = |index: usize| &b[index * stride..index * stride + width];
    let whole = a.len() / TOGETHER * TOGETHER;
    for first in (0..whole).step_by(TOGETHER) {
        let factors = [a[first], a[first + 1], a[first + 2], a[first + 3]];
        let rows = [row(first), row(first + 1), row(first + 2), row(first + 3)];
        for (at, c) in c.iter_mut().enumerate() {
            let upper = factors[0] * rows[0][at].wide() + factors[1] * rows[1][at].wide();
            let lower = factors[2] * rows[2][at].wide() + factors[3] * rows[3][at].wide();
            *c += upper + lower;
        }
    }
    for (index, factor) in a.iter().enumerate().skip(whole) {
        c.iter_mut().zip(row(index)).for_each(|(c, b)| *c += *factor * b.wide());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    /// The product in f64 by the definition.
    fn expected(a: &[f32], b: &[f32], inputs: usize, outputs: usize, transposed: bool) -> Vec<f64> {
        let at =
            |row: usize, col: usize| if transposed { b[col * inputs + row] } else { b[row * outputs + col] };
        let dot = |col| (0..inputs).map(|row| f64::from(a[row]) * f64::from(at(row, col))).sum();
        (0..outputs).map(dot).collect()
    }

    #[test]
    fn one_row_is_multiplied_as_by_the_definition_with_any_number_of_threads() {
        for (inputs, outputs) in [(257, 300), (64, 1100), (1030, 65)] {
            let number = |at: usize| ((at * 7919 + 13) % 1000) as f32 / 500.0 - 1.0;
            let a: Vec<f32> = (0..inputs).map(number).collect();
            let b: Vec<f32> = (0..inputs * outputs).map(|at| number(at + 5)).collect();
            for transposed in [false, true] {
                let matrix = Matrix::batched(&b, inputs, outputs, transposed);
                assert!(applies(1, &matrix));
                let product = |threads: usize, accumulate: bool| {
                    let mut c = vec![0.5_f32; outputs];
                    multiply(&Context::new(threads), &a, matrix, &mut c, accumulate);
                    c
                };
                let one = product(1, false);
                let exact = expected(&a, &b, inputs, outputs, transposed);
                let near = |(c, exact): (&f32, &f64)| (f64::from(*c) - exact).abs() < 1e-3;
                assert!(one.iter().zip(&exact).all(near), "{inputs}×{outputs}, {transposed}");
                assert_eq!(product(3, false), one);
                // The elements of bf16 are multiplied as those of f32 with the same numbers.
                let narrow: Vec<bf16> = b.iter().map(|number| bf16::from_f32(*number)).collect();
                let rounded: Vec<f32> = narrow.iter().map(|number| number.to_f32()).collect();
                let mut of_narrow = vec![0.0; outputs];
                let narrow = Matrix::batched(&narrow, inputs, outputs, transposed);
                multiply_row_bf16(&Context::new(2), &a, narrow, &mut of_narrow).expect("sizes match");
                let mut of_rounded = vec![0.0; outputs];
                let rounded = Matrix::batched(&rounded, inputs, outputs, transposed);
                multiply(&Context::new(1), &a, rounded, &mut of_rounded, false);
                assert_eq!(of_narrow, of_rounded);
                let more = product(2, true);
                assert!(more.iter().zip(&one).all(|(more, one)| (more - one - 0.5).abs() < 1e-4));
            }
        }
    }
}
