//! Elementwise functions and their derivatives.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UnaryOp {
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// x where positive, slope·x elsewhere.
    LeakyRelu(f64),
    /// 1/(1 + e⁻ˣ).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// x·σ(x).
    Silu,
    /// x·Φ(x) by the error function.
    Gelu,
    /// x·σ(1.702x).
    QuickGelu,
    /// eˣ.
    Exp,
    /// min(max(x, low), high).
    Clamp {
        /// The smallest value.
        low: f64,
        /// The largest value.
        high: f64,
    },
}

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// tanh by eˣ, and by its series near zero, where the quotient would cancel.
#[inline(always)]
fn tanh<T: Float>(x: T) -> T {
    let square = x * x;
    let c = |v: f64| T::from_f64(v);
    let near = c(-1382.0 / 155_925.0);
    let near = near * square + c(62.0 / 2835.0);
    let near = near * square + c(-17.0 / 315.0);
    let near = near * square + c(2.0 / 15.0);
    let near = near * square + c(-1.0 / 3.0);
    let near = x + x * square * near;
    let far = T::ONE - (T::ONE + T::ONE) / ((x + x).exp() + T::ONE);
    if square < c(0.01) { near } else { far }
}

impl UnaryOp {
    /// Whether the derivative follows from the output alone, so that the input need not be kept.
    pub fn derivative_from_output(self) -> bool {
        matches!(self, Self::Relu | Self::Relu6 | Self::Sigmoid | Self::Tanh | Self::Exp)
    }
}

/// y = f(x).
///
/// # Errors
/// If the lengths differ.
pub fn unary_forward<T: Float>(context: &Context, op: UnaryOp, x: &[T], y: &mut [T]) -> Result<()> {
    check_len("unary_forward", "y", x.len(), y.len())?;
    let piece = context.piece(x.len(), 1);
    context.run_chunks(y, piece, |task, y| {
        let x = &x[task * piece..];
        context.simd(
            #[inline(always)]
            || apply(op, x, y),
        );
    });
    Ok(())
}

/// y = f(x), a piece at a time that stays in the cache.
#[inline(always)]
pub(crate) fn apply<T: Float>(op: UnaryOp, x: &[T], y: &mut [T]) {
    const PIECE: usize = 1024;
    for (y, x) in y.chunks_mut(PIECE).zip(x.chunks(PIECE)) {
        y.copy_from_slice(&x[..y.len()]);
        apply_in_place(op, y);
    }
}

/// One loop a function, so that none branches inside.
#[inline(always)]
pub(crate) fn apply_in_place<T: Float>(op: UnaryOp, y: &mut [T]) {
    macro_rules! each {
        ($f:expr) => {
            y.iter_mut().for_each(|y| *y = $f(*y))
        };
    }
    let half = T::from_f64(0.5);
    match op {
        UnaryOp::Relu => each!(|x: T| x.max(T::ZERO)),
        UnaryOp::Relu6 => each!(|x: T| x.max(T::ZERO).min(T::from_f64(6.0))),
        UnaryOp::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            each!(|x: T| if x > T::ZERO { x } else { x * slope });
        }
        UnaryOp::Sigmoid => each!(sigmoid),
        UnaryOp::Tanh => each!(tanh),
        UnaryOp::Silu => each!(|x: T| x * sigmoid(x)),
        UnaryOp::Gelu => {
            let root = T::from_f64(std::f64::consts::FRAC_1_SQRT_2);
            each!(|x: T| half * x * (T::ONE + (x * root).erf()));
        }
        UnaryOp::QuickGelu => {
            let factor = T::from_f64(1.702);
            each!(|x: T| x * sigmoid(x * factor));
        }
        UnaryOp::Exp => each!(|x: T| x.exp()),
        UnaryOp::Clamp { low, high } => {
            let (low, high) = (T::from_f64(low), T::from_f64(high));
            each!(|x: T| x.max(low).min(high));
        }
    }
}

/// dx = f′(x)·dy, given both x and y = f(x); where [`UnaryOp::derivative_from_output`] holds, `x` is not read
/// and may be any slice of the same length.
///
/// # Errors
/// If the lengths differ.
pub fn unary_backward<T: Float>(
    context: &Context,
    op: UnaryOp,
    x: &[T],
    y: &[T],
    dy: &[T],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "unary_backward";
    check_len(KERNEL, "x", dx.len(), x.len())?;
    check_len(KERNEL, "y", dx.len(), y.len())?;
    check_len(KERNEL, "dy", dx.len(), dy.len())?;
    let piece = context.piece(x.len(), 1);
    context.run_chunks(dx, piece, |task, dx| {
        let start = task * piece;
        context.simd(
            #[inline(always)]
            || apply_backward(op, &x[start..], &y[start..], &dy[start..], dx),
        );
    });
    Ok(())
}

#[inline(always)]
fn apply_backward<T: Float>(op: UnaryOp, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
    macro_rules! from_output {
        ($f:expr) => {
            dx.iter_mut().zip(y).zip(dy).for_each(|((dx, y), dy)| *dx = $f(*y, *dy))
        };
    }
    macro_rules! from_input {
        ($f:expr) => {
            dx.iter_mut().zip(x).zip(dy).for_each(|((dx, x), dy)| *dx = $f(*x) * *dy)
        };
    }
    let one = T::ONE;
    match op {
        UnaryOp::Relu => from_output!(|y: T, dy: T| if y > T::ZERO { dy } else { T::ZERO }),
        UnaryOp::Relu6 => {
            let six = T::from_f64(6.0);
            // Not `&&`, which would be a branch.
            from_output!(|y: T, dy: T| if (y > T::ZERO) & (y < six) { dy } else { T::ZERO });
        }
        UnaryOp::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            from_input!(|x: T| if x > T::ZERO { one } else { slope });
        }
        UnaryOp::Sigmoid => from_output!(|y: T, dy: T| dy * y * (one - y)),
        UnaryOp::Tanh => from_output!(|y: T, dy: T| dy * (one - y * y)),
        UnaryOp::Exp => from_output!(|y: T, dy: T| dy * y),
        UnaryOp::Clamp { low, high } => {
            let (low, high) = (T::from_f64(low), T::from_f64(high));
            from_input!(|x: T| if (x >= low) & (x <= high) { one } else { T::ZERO });
        }
        UnaryOp::Silu => from_input!(|x: T| {
            let s = sigmoid(x);
            s + x * s * (one - s)
        }),
        UnaryOp::QuickGelu => {
            let factor = T::from_f64(1.702);
            from_input!(|x: T| {
                let s = sigmoid(x * factor);
                s + factor * x * s * (one - s)
            });
        }
        UnaryOp::Gelu => {
            let half = T::from_f64(0.5);
            let root = T::from_f64(std::f64::consts::FRAC_1_SQRT_2);
            let density =
                T::from_f64(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
            from_input!(|x: T| half * (one + (x * root).erf()) + x * density * (-x * x * half).exp());
        }
    }
}
