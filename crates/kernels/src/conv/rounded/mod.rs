//! Convolution of bf16 numbers, forward and both gradients, and of f32 numbers rounded to bf16.

#[cfg(target_arch = "x86_64")]
mod gather;

use half::bf16;

use super::{Conv2dShape, check, conv2d_backward_input, conv2d_backward_weight, conv2d_forward};
#[cfg(not(target_arch = "x86_64"))]
use crate::bfloat::pairs::ToBf16;
use crate::bfloat::{narrow, widen};
use crate::context::Context;
use crate::error::{Result, check_len};

/// True if bf16 products are faster than the f32 methods for the shape.
pub(crate) fn suits(context: &Context, shape: &Conv2dShape) -> bool {
    context.bf16().is_some() && super::suits_bf16(shape)
}

/// Computes y = x ⋆ w + bias for bf16 maps and weights: `x` is [N, C, H, W], `w` [O, C/groups, KH, KW], `bias` `[O]`, `y`
/// [N, O, H', W']. Sums are f32 and rounded once.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_forward_bf16(
    context: &Context,
    shape: &Conv2dShape,
    x: &[bf16],
    w: &[bf16],
    bias: Option<&[f32]>,
    y: &mut [bf16],
) -> Result<()> {
    const KERNEL: &str = "conv2d_forward_bf16";
    check(KERNEL, shape, ("x", x), ("w", w), ("y", y))?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", shape.out_channels, bias.len())?;
    }
    let mut wide_w = context.scratch(w.len());
    widen(context, w, &mut wide_w)?;
    let mut wide_y = context.scratch(y.len());
    if suits(context, shape) {
        gather::forward(context, shape, x, &wide_w, &mut wide_y);
        super::add_bias(context, shape, bias, &mut wide_y);
    } else {
        let mut wide_x = context.scratch(x.len());
        widen(context, x, &mut wide_x)?;
        conv2d_forward(context, shape, &wide_x, &wide_w, bias, &mut wide_y)?;
    }
    narrow(context, &wide_y, y)
}

/// Computes the gradient of the input in bf16; `dx` is overwritten.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_backward_input_bf16(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[bf16],
    w: &[bf16],
    dx: &mut [bf16],
) -> Result<()> {
    check("conv2d_backward_input_bf16", shape, ("dx", dx), ("w", w), ("dy", dy))?;
    let mut wide_w = context.scratch(w.len());
    widen(context, w, &mut wide_w)?;
    let mut wide_dx = context.scratch(dx.len());
    if suits(context, shape) {
        gather::backward_input(context, shape, dy, &wide_w, &mut wide_dx);
    } else {
        let mut wide_dy = context.scratch(dy.len());
        widen(context, dy, &mut wide_dy)?;
        conv2d_backward_input(context, shape, &wide_dy, &wide_w, &mut wide_dx)?;
    }
    narrow(context, &wide_dx, dx)
}

/// Computes the f32 gradient of the weights from bf16 maps and writes it to `dw`, or adds it with `accumulate`. The maps are
/// widened, so that sums over many pixels are as exact as in f32.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_backward_weight_bf16(
    context: &Context,
    shape: &Conv2dShape,
    x: &[bf16],
    dy: &[bf16],
    dw: &mut [f32],
    accumulate: bool,
) -> Result<()> {
    const KERNEL: &str = "conv2d_backward_weight_bf16";
    check_len(KERNEL, "x", shape.input_len(), x.len())?;
    check_len(KERNEL, "dy", shape.output_len(), dy.len())?;
    let (mut wide_x, mut wide_dy) = (context.scratch(x.len()), context.scratch(dy.len()));
    widen(context, x, &mut wide_x)?;
    widen(context, dy, &mut wide_dy)?;
    conv2d_backward_weight(context, shape, &wide_x, &wide_dy, dw, accumulate)
}

/// Computes forward with rounded f32 operands, if [`suits`] holds.
pub(crate) fn forward_rounded(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    gather::forward(context, shape, x, w, y);
}

/// Computes the input's gradient with rounded f32 operands, if [`suits`] holds.
pub(crate) fn backward_input_rounded(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
) {
    gather::backward_input(context, shape, dy, w, dx);
}

#[cfg(not(target_arch = "x86_64"))]
mod gather {
    use super::{Context, Conv2dShape, ToBf16};

    pub(super) fn forward<T: ToBf16>(_: &Context, _: &Conv2dShape, _: &[T], _: &[f32], _: &mut [f32]) {
        unreachable!("no CPU of this architecture has bf16 products");
    }

    pub(super) fn backward_input<T: ToBf16>(_: &Context, _: &Conv2dShape, _: &[T], _: &[f32], _: &mut [f32]) {
        unreachable!("no CPU of this architecture has bf16 products");
    }
}
