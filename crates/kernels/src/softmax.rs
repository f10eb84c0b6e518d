//! Softmax of rows.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::{dot_slice, sum_slice};

/// The maximum of a row, lane by lane.
#[inline(always)]
pub(crate) fn row_max<T: Float>(row: &[T]) -> T {
    const LANES: usize = 16;
    let (whole, tail) = row.as_chunks::<LANES>();
    let mut lanes = [T::LOWEST; LANES];
    for values in whole {
        for lane in 0..LANES {
            lanes[lane] = lanes[lane].max(values[lane]);
        }
    }
    lanes.into_iter().chain(tail.iter().copied()).fold(T::LOWEST, T::max)
}

/// Computes y = eˣ / Σ eˣ over each row of [rows, width]; −∞ gives exactly 0, also in a row that has nothing else.
///
/// # Errors
/// If a length does not match the shape.
pub fn softmax_rows_forward<T: Float>(
    context: &Context,
    rows: usize,
    width: usize,
    x: &[T],
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "softmax_rows_forward";
    check_len(KERNEL, "x", rows * width, x.len())?;
    check_len(KERNEL, "y", rows * width, y.len())?;
    let piece = context.piece(x.len(), width);
    context.run_chunks(y, piece, |task, y| {
        let x = &x[task * piece..];
        context.simd(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                    let max = row_max(x);
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = (*x - max).exp();
                    }
                    let sum = sum_slice(y);
                    let factor = T::from_f64(if sum == 0.0 { 0.0 } else { 1.0 / sum });
                    for y in y.iter_mut() {
                        *y = *y * factor;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Computes dx = y·(dy − ⟨y, dy⟩) over each row, from the output of [`softmax_rows_forward`].
///
/// # Errors
/// If a length does not match the shape.
pub fn softmax_rows_backward<T: Float>(
    context: &Context,
    rows: usize,
    width: usize,
    y: &[T],
    dy: &[T],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "softmax_rows_backward";
    for (name, found) in [("y", y.len()), ("dy", dy.len()), ("dx", dx.len())] {
        check_len(KERNEL, name, rows * width, found)?;
    }
    let piece = context.piece(y.len(), width);
    context.run_chunks(dx, piece, |task, dx| {
        let start = task * piece;
        context.simd(
            #[inline(always)]
            || {
                let rows = y[start..].chunks_exact(width).zip(dy[start..].chunks_exact(width));
                for ((y, dy), dx) in rows.zip(dx.chunks_exact_mut(width)) {
                    let along = T::from_f64(dot_slice(y, dy));
                    for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                        *dx = *y * (*dy - along);
                    }
                }
            },
        );
    });
    Ok(())
}
