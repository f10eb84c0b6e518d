//! Elementwise functions and their derivatives.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UnaryOp {
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    ReluSquared,
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
    /// x·(1 + tanh(√(2/π)·(x + 0.044715x³)))/2.
    GeluTanh,
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
pub(crate) fn tanh<T: Float>(x: T) -> T {
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

// Functions rather than closures: these are always inlined, so that loops over them vectorise.

#[inline(always)]
pub(crate) fn silu<T: Float>(x: T) -> T {
    x * sigmoid(x)
}

#[inline(always)]
pub(crate) fn silu_slope<T: Float>(x: T) -> T {
    let s = sigmoid(x);
    s + x * s * (T::ONE - s)
}

#[inline(always)]
fn relu_squared<T: Float>(x: T) -> T {
    let positive = x.max(T::ZERO);
    positive * positive
}

#[inline(always)]
fn quick_gelu<T: Float>(x: T) -> T {
    x * sigmoid(x * T::from_f64(1.702))
}

#[inline(always)]
fn quick_gelu_slope<T: Float>(x: T) -> T {
    let factor = T::from_f64(1.702);
    let s = sigmoid(x * factor);
    s + factor * x * s * (T::ONE - s)
}

/// The σ of GELU's form with tanh, as (1 + tanh u)/2 = σ(2u).
#[inline(always)]
fn gelu_tanh_gate<T: Float>(x: T) -> T {
    let [linear, cubic] = GELU_TANH.map(T::from_f64);
    sigmoid(x * (linear + cubic * x * x))
}

/// 2√(2/π), and that times 0.044715.
const GELU_TANH: [f64; 2] = {
    let linear = 2.0 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    [linear, linear * 0.044_715]
};

#[inline(always)]
fn gelu_tanh<T: Float>(x: T) -> T {
    x * gelu_tanh_gate(x)
}

#[inline(always)]
fn gelu_tanh_slope<T: Float>(x: T) -> T {
    let [linear, cubic] = GELU_TANH.map(T::from_f64);
    let s = gelu_tanh_gate(x);
    s + x * s * (T::ONE - s) * (linear + T::from_f64(3.0) * cubic * x * x)
}

/// Φ(x), the normal distribution's function.
#[inline(always)]
fn phi<T: Float>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

#[inline(always)]
pub(crate) fn gelu<T: Float>(x: T) -> T {
    x * phi(x)
}

#[inline(always)]
pub(crate) fn gelu_slope<T: Float>(x: T) -> T {
    let density = T::from_f64(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
    phi(x) + x * density * (-x * x * T::from_f64(0.5)).exp()
}

impl UnaryOp {
    /// True if the derivative follows from the output alone, so that the input need not be kept.
    pub fn derivative_from_output(self) -> bool {
        matches!(self, Self::Relu | Self::Relu6 | Self::Sigmoid | Self::Tanh | Self::Exp)
    }
}

/// Computes y = f(x).
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

/// Computes y = f(x) in pieces that stay in the cache.
#[inline(always)]
fn apply<T: Float>(op: UnaryOp, x: &[T], y: &mut [T]) {
    const PIECE: usize = 1024;
    for (y, x) in y.chunks_mut(PIECE).zip(x.chunks(PIECE)) {
        y.copy_from_slice(&x[..y.len()]);
        apply_in_place(op, y);
    }
}

/// Has one loop for each function, so that no loop branches.
#[inline(always)]
fn apply_in_place<T: Float>(op: UnaryOp, y: &mut [T]) {
    macro_rules! each {
        ($f:expr) => {
            for y in y.iter_mut() {
                *y = $f(*y);
            }
        };
    }
    match op {
        UnaryOp::Relu => each!(|x: T| x.max(T::ZERO)),
        UnaryOp::ReluSquared => each!(relu_squared),
        UnaryOp::Relu6 => each!(|x: T| x.max(T::ZERO).min(T::from_f64(6.0))),
        UnaryOp::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            each!(|x: T| if x > T::ZERO { x } else { x * slope });
        }
        UnaryOp::Sigmoid => each!(sigmoid),
        UnaryOp::Tanh => each!(tanh),
        UnaryOp::Silu => each!(silu),
        UnaryOp::Gelu => each!(gelu),
        UnaryOp::GeluTanh => each!(gelu_tanh),
        UnaryOp::QuickGelu => each!(quick_gelu),
        UnaryOp::Exp => each!(T::exp),
        UnaryOp::Clamp { low, high } => {
            let (low, high) = (T::from_f64(low), T::from_f64(high));
            each!(|x: T| x.max(low).min(high));
        }
    }
}

/// Computes dx = f′(x)·dy from x and y = f(x). If [`UnaryOp::derivative_from_output`] holds, `x` is not read and may be any
/// slice of the same length.
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
            for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = $f(*y, *dy);
            }
        };
    }
    macro_rules! from_input {
        ($f:expr) => {
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = $f(*x) * *dy;
            }
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
        UnaryOp::ReluSquared => from_input!(|x: T| x.max(T::ZERO) + x.max(T::ZERO)),
        UnaryOp::Silu => from_input!(silu_slope),
        UnaryOp::GeluTanh => from_input!(gelu_tanh_slope),
        UnaryOp::QuickGelu => from_input!(quick_gelu_slope),
        UnaryOp::Gelu => from_input!(gelu_slope),
    }
}
