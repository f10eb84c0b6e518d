//! Softmax of rows, and cross-entropy fused with it.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
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

/// Computes y = eˣ / Σ eˣ over each row of [rows, width]; −∞ gives exactly 0.
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
                    let factor = T::from_f64(1.0 / sum_slice(y));
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

/// Computes the cross-entropy of each row's softmax with its label, and the softmax for backward.
///
/// The target is smoothed towards the uniform distribution by `smoothing` (Szegedy et al. 2016).
///
/// # Errors
/// If a length does not match the shape, or a label is not below `width`.
pub fn cross_entropy_rows_forward<T: Float>(
    context: &Context,
    width: usize,
    logits: &[T],
    labels: &[u32],
    smoothing: f64,
    losses: &mut [T],
    softmax: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "cross_entropy_rows_forward";
    let rows = labels.len();
    check_len(KERNEL, "logits", rows * width, logits.len())?;
    check_len(KERNEL, "losses", rows, losses.len())?;
    if let Some(row) = labels.iter().position(|label| *label as usize >= width) {
        let problem = format!("label {} of row {row} is not below the {width} classes", labels[row]);
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    softmax_rows_forward(context, rows, width, logits, softmax)?;
    for (row, loss) in losses.iter_mut().enumerate() {
        let x = &logits[row * width..(row + 1) * width];
        let max = row_max(x).to_f64();
        let log_sum = x.iter().map(|v| (v.to_f64() - max).exp()).sum::<f64>().ln() + max;
        let own = log_sum - x[labels[row] as usize].to_f64();
        let uniform = log_sum - sum_slice(x) / width as f64;
        *loss = T::from_f64((1.0 - smoothing) * own + smoothing * uniform);
    }
    Ok(())
}

/// Computes the gradient of Σ factor·loss in the logits from the softmax.
///
/// # Errors
/// If a length does not match the shape, or a label is not below `width`.
pub fn cross_entropy_rows_backward<T: Float>(
    width: usize,
    softmax: &[T],
    labels: &[u32],
    smoothing: f64,
    factor: f64,
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "cross_entropy_rows_backward";
    check_len(KERNEL, "softmax", labels.len() * width, softmax.len())?;
    check_len(KERNEL, "dx", labels.len() * width, dx.len())?;
    if let Some(row) = labels.iter().position(|label| *label as usize >= width) {
        let problem = format!("label {} of row {row} is not below the {width} classes", labels[row]);
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    let (own, uniform) = (1.0 - smoothing, smoothing / width as f64);
    for (row, label) in labels.iter().enumerate() {
        let range = row * width..(row + 1) * width;
        for (class, (dx, p)) in dx[range.clone()].iter_mut().zip(&softmax[range]).enumerate() {
            let target = uniform + if class == *label as usize { own } else { 0.0 };
            *dx = T::from_f64((p.to_f64() - target) * factor);
        }
    }
    Ok(())
}
