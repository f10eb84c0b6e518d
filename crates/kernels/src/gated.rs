//! Gated linear units (Shazeer 2020).

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::unary::{gelu, gelu_slope, silu, silu_slope};

/// Computes y = value·gelu(gate) of rows of `width` values and `width` gates (GEGLU, Shazeer 2020): [rows, 2·width] to
/// [rows, width].
///
/// # Errors
/// If the lengths do not match.
pub fn geglu_forward<T: Float>(context: &Context, width: usize, x: &[T], y: &mut [T]) -> Result<()> {
    const KERNEL: &str = "geglu_forward";
    check_len(KERNEL, "x", 2 * y.len(), x.len())?;
    check_len(KERNEL, "y", y.len().checked_div(width).unwrap_or(0) * width, y.len())?;
    let piece = context.piece(y.len(), width);
    context.run_chunks(y, piece, |task, y| {
        let x = &x[2 * task * piece..];
        context.simd(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
                    let (value, gate) = x.split_at(width);
                    for ((y, value), gate) in y.iter_mut().zip(value).zip(gate) {
                        *y = *value * gelu(*gate);
                    }
                }
            },
        );
    });
    Ok(())
}

/// Computes the gradient of [`geglu_forward`]'s input [rows, 2·width] from the gradient of its output.
///
/// # Errors
/// If the lengths do not match.
pub fn geglu_backward<T: Float>(
    context: &Context,
    width: usize,
    x: &[T],
    dy: &[T],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "geglu_backward";
    check_len(KERNEL, "x", 2 * dy.len(), x.len())?;
    check_len(KERNEL, "dx", x.len(), dx.len())?;
    check_len(KERNEL, "dy", dy.len().checked_div(width).unwrap_or(0) * width, dy.len())?;
    let piece = context.piece(dx.len(), 2 * width);
    context.run_chunks(dx, piece, |task, dx| {
        let (x, dy) = (&x[task * piece..], &dy[task * piece / 2..]);
        context.simd(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(2 * width).zip(dy.chunks_exact(width));
                for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(2 * width)) {
                    let ((value, gate), (dvalue, dgate)) = (x.split_at(width), dx.split_at_mut(width));
                    // Several loops of few arrays: the compiler does not vectorise one loop over all five.
                    for ((dvalue, gate), dy) in dvalue.iter_mut().zip(gate).zip(dy) {
                        *dvalue = *dy * gelu(*gate);
                    }
                    for ((dgate, gate), dy) in dgate.iter_mut().zip(gate).zip(dy) {
                        *dgate = *dy * gelu_slope(*gate);
                    }
                    for (dgate, value) in dgate.iter_mut().zip(value) {
                        *dgate = *dgate * *value;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Computes y = silu(gate)·value.
///
/// # Errors
/// If the lengths differ.
pub fn swiglu_forward<T: Float>(context: &Context, gate: &[T], value: &[T], y: &mut [T]) -> Result<()> {
    const KERNEL: &str = "swiglu_forward";
    check_len(KERNEL, "value", gate.len(), value.len())?;
    check_len(KERNEL, "y", gate.len(), y.len())?;
    let piece = context.piece(y.len(), 1);
    context.run_chunks(y, piece, |task, y| {
        let (gate, value) = (&gate[task * piece..], &value[task * piece..]);
        context.simd(
            #[inline(always)]
            || {
                for ((y, gate), value) in y.iter_mut().zip(gate).zip(value) {
                    *y = silu(*gate) * *value;
                }
            },
        );
    });
    Ok(())
}

/// The inputs of the backward of [`swiglu_forward`].
#[derive(Debug, Clone, Copy)]
pub struct SwigluBackward<'a, T> {
    /// The gates.
    pub gate: &'a [T],
    /// The values.
    pub value: &'a [T],
    /// The gradient of the output.
    pub dy: &'a [T],
}

/// Computes the gradients of the gates and of the values of [`swiglu_forward`].
///
/// # Errors
/// If the lengths differ.
pub fn swiglu_backward<T: Float>(
    context: &Context,
    of: SwigluBackward<'_, T>,
    [dgate, dvalue]: [&mut [T]; 2],
) -> Result<()> {
    const KERNEL: &str = "swiglu_backward";
    let SwigluBackward { gate, value, dy } = of;
    for (name, len) in
        [("value", value.len()), ("dy", dy.len()), ("dgate", dgate.len()), ("dvalue", dvalue.len())]
    {
        check_len(KERNEL, name, gate.len(), len)?;
    }
    let piece = context.piece(dgate.len(), 1);
    let tasks = dgate.chunks_mut(piece).zip(dvalue.chunks_mut(piece)).enumerate().collect();
    context.run_each(tasks, |(task, (dgate, dvalue)): (usize, (&mut [T], &mut [T]))| {
        let start = task * piece;
        let (gate, value, dy) = (&gate[start..], &value[start..], &dy[start..]);
        context.simd(
            #[inline(always)]
            || {
                // Several loops of few arrays: the compiler does not vectorise one loop over all five.
                for ((dvalue, gate), dy) in dvalue.iter_mut().zip(gate).zip(dy) {
                    *dvalue = *dy * silu(*gate);
                }
                for ((dgate, gate), dy) in dgate.iter_mut().zip(gate).zip(dy) {
                    *dgate = *dy * silu_slope(*gate);
                }
                for (dgate, value) in dgate.iter_mut().zip(value) {
                    *dgate = *dgate * *value;
                }
            },
        );
    });
    Ok(())
}
