//! The fully connected layer; the bias is added while a row of the result is in the cache.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::matmul::{Matrix, MatrixMut, matmul_batched};

/// Computes y = x·W + bias: `x` is [rows, inputs], `w` a matrix of inputs×outputs, stored plain or transposed, `bias`
/// `[outputs]`, `y` [rows, outputs].
///
/// # Errors
/// If a length does not match the sizes.
pub fn linear_forward<T: Float>(
    context: &Context,
    [rows, inputs, outputs]: [usize; 3],
    x: &[T],
    w: Matrix<'_, T>,
    bias: Option<&[T]>,
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "linear_forward";
    check_len(KERNEL, "x", rows * inputs, x.len())?;
    check_len(KERNEL, "y", rows * outputs, y.len())?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", outputs, bias.len())?;
    }
    let left = Matrix::batched(x, rows, inputs, false);
    matmul_batched(context, 1, left, w, MatrixMut::batched(y, rows, outputs), false)?;
    let Some(bias) = bias else { return Ok(()) };
    let piece = context.piece(y.len(), outputs.max(1));
    context.run_chunks(y, piece, |_, y| {
        context.simd(
            #[inline(always)]
            || {
                for y in y.chunks_exact_mut(outputs.max(1)) {
                    y.iter_mut().zip(bias).for_each(|(y, bias)| *y += *bias);
                }
            },
        );
    });
    Ok(())
}
