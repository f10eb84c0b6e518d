//! The fully connected layer, with bias and activation while a row of the result is in the cache.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::matmul::{Matrix, MatrixMut, matmul_batched};
use crate::unary::{UnaryOp, apply, apply_in_place};

/// y = f(x·Wᵀ + bias): `x` is [rows, inputs], `w` [outputs, inputs], `bias` `[outputs]`, `y` [rows, outputs]. If
/// `before` is given, x·Wᵀ + bias goes there for [`crate::unary_backward`].
///
/// # Errors
/// If a length is not the sizes'.
pub fn linear_forward<T: Float>(
    context: &Context,
    [rows, inputs, outputs]: [usize; 3],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    activation: Option<UnaryOp>,
    before: Option<&mut [T]>,
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "linear_forward";
    check_len(KERNEL, "x", rows * inputs, x.len())?;
    check_len(KERNEL, "w", outputs * inputs, w.len())?;
    check_len(KERNEL, "y", rows * outputs, y.len())?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", outputs, bias.len())?;
    }
    if let Some(before) = &before {
        check_len(KERNEL, "before", rows * outputs, before.len())?;
    }
    let product = before.map_or(Target::Result, Target::Before);
    let left = Matrix::batched(x, rows, inputs, false);
    let right = Matrix::batched(w, inputs, outputs, true);
    match product {
        Target::Result => {
            matmul_batched(context, 1, left, right, MatrixMut::batched(y, rows, outputs), false)?;
            finish(context, outputs, bias, y, |y| {
                if let Some(op) = activation {
                    apply_in_place(op, y);
                }
            });
        }
        Target::Before(before) => {
            matmul_batched(context, 1, left, right, MatrixMut::batched(before, rows, outputs), false)?;
            finish(context, outputs, bias, before, |_| ());
            let before = &*before;
            let piece = context.piece(y.len(), outputs.max(1));
            context.run_chunks(y, piece, |task, y| {
                let before = &before[task * piece..][..y.len()];
                context.simd(
                    #[inline(always)]
                    || match activation {
                        Some(op) => apply(op, before, y),
                        None => y.copy_from_slice(before),
                    },
                );
            });
        }
    }
    Ok(())
}

/// Where the product goes.
enum Target<'a, T> {
    Result,
    Before(&'a mut [T]),
}

/// Adds the bias to every row and does something more with it.
fn finish<T: Float>(
    context: &Context,
    outputs: usize,
    bias: Option<&[T]>,
    y: &mut [T],
    more: impl Fn(&mut [T]) + Sync + Send,
) {
    let piece = context.piece(y.len(), outputs.max(1));
    context.run_chunks(y, piece, |_, y| {
        context.simd(
            #[inline(always)]
            || {
                for y in y.chunks_exact_mut(outputs.max(1)) {
                    if let Some(bias) = bias {
                        y.iter_mut().zip(bias).for_each(|(y, bias)| *y += *bias);
                    }
                    more(y);
                }
            },
        );
    });
}
