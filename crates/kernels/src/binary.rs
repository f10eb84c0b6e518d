//! Sums, differences and products element by element, and sums of columns and of rows.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a·b.
    Mul,
}

impl BinaryOp {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
        }
    }
}

/// Computes y = a ∘ b. A shorter `b` is broadcast: each element counts for equally many neighbours of `a`, such as one number
/// for every plane of [N, C, H, W].
///
/// # Errors
/// If the length of `b` does not divide the length of `a`, or `y` is not as long as `a`.
pub fn binary<T: Float>(context: &Context, op: BinaryOp, a: &[T], b: &[T], y: &mut [T]) -> Result<()> {
    const KERNEL: &str = "binary";
    check_len(KERNEL, "y", a.len(), y.len())?;
    let plane = a.len().checked_div(b.len()).unwrap_or(0);
    check_len(KERNEL, "b", a.len(), b.len() * plane)?;
    if plane <= 1 {
        let piece = context.piece(y.len(), 1);
        context.run_chunks(y, piece, |task, y| {
            let start = task * piece;
            let (a, b) = (&a[start..][..y.len()], &b[start..][..y.len()]);
            context.simd(
                #[inline(always)]
                || each(op, a, b, y),
            );
        });
    } else {
        let piece = context.piece(y.len(), plane);
        context.run_chunks(y, piece, |task, y| {
            let (start, first) = (task * piece, task * piece / plane);
            context.simd(
                #[inline(always)]
                || {
                    let planes = y.chunks_exact_mut(plane).zip(a[start..].chunks_exact(plane));
                    for ((y, a), b) in planes.zip(&b[first..]) {
                        with_one(op, a, *b, y);
                    }
                },
            );
        });
    }
    Ok(())
}

#[inline(always)]
fn each<T: Float>(op: BinaryOp, a: &[T], b: &[T], y: &mut [T]) {
    macro_rules! each {
        ($op:tt) => {
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = *a $op *b;
            }
        };
    }
    match op {
        BinaryOp::Add => each!(+),
        BinaryOp::Sub => each!(-),
        BinaryOp::Mul => each!(*),
    }
}

#[inline(always)]
fn with_one<T: Float>(op: BinaryOp, a: &[T], b: T, y: &mut [T]) {
    macro_rules! each {
        ($op:tt) => {
            for (y, a) in y.iter_mut().zip(a) {
                *y = *a $op b;
            }
        };
    }
    match op {
        BinaryOp::Add => each!(+),
        BinaryOp::Sub => each!(-),
        BinaryOp::Mul => each!(*),
    }
}

/// Rows added in the element type before the sum moves to f64.
const ROWS: usize = 64;

/// Writes the sums of the columns of a matrix [rows, cols] to `sums` `[cols]`, in an order that does not depend on threads.
///
/// # Errors
/// If a length does not match the shape.
pub fn sum_columns<T: Float>(
    context: &Context,
    [rows, cols]: [usize; 2],
    x: &[T],
    sums: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "sum_columns";
    check_len(KERNEL, "x", rows * cols, x.len())?;
    check_len(KERNEL, "sums", cols, sums.len())?;
    if rows * cols == 0 {
        sums.fill(T::ZERO);
        return Ok(());
    }
    // Whole vectors for each thread.
    let width = cols.div_ceil(context.parts()).next_multiple_of(16);
    context.run_chunks(sums, width, |task, sums| {
        let first = task * width;
        let mut totals = vec![0.0_f64; sums.len()];
        context.simd(
            #[inline(always)]
            || sum_columns_from(first, cols, x, sums, &mut totals),
        );
    });
    Ok(())
}

/// Writes the sums of the columns from `first` on to `sums`. `totals` is as long and begins with zeros.
#[inline(always)]
fn sum_columns_from<T: Float>(first: usize, cols: usize, x: &[T], sums: &mut [T], totals: &mut [f64]) {
    for rows in x.chunks(ROWS * cols) {
        sums.fill(T::ZERO);
        for row in rows.chunks_exact(cols) {
            for (sum, x) in sums.iter_mut().zip(&row[first..]) {
                *sum += *x;
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums.iter()) {
            *total += sum.to_f64();
        }
    }
    for (sum, total) in sums.iter_mut().zip(&*totals) {
        *sum = T::from_f64(*total);
    }
}

/// Writes the sums of the rows of a matrix [rows, cols] to `sums` `[rows]`.
///
/// # Errors
/// If a length does not match the shape.
pub fn sum_rows<T: Float>(
    context: &Context,
    [rows, cols]: [usize; 2],
    x: &[T],
    sums: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "sum_rows";
    check_len(KERNEL, "x", rows * cols, x.len())?;
    check_len(KERNEL, "sums", rows, sums.len())?;
    let some = rows.div_ceil(context.parts()).max(1);
    context.run_chunks(sums, some, |task, sums| {
        context.simd(
            #[inline(always)]
            || {
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum = T::from_f64(sum_slice(&x[(task * some + index) * cols..][..cols]));
                }
            },
        );
    });
    Ok(())
}
