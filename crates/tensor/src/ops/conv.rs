//! Two-dimensional convolution.

use candle_core::{Tensor, WithDType as _};
use phalanx_kernels::{
    Conv2dShape, conv2d_backward_bias, conv2d_backward_input, conv2d_backward_weight, conv2d_forward,
};

use crate::storage::unwritten;
use crate::storage::{Contiguous, dispatch, operand, stored, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Stride, padding, dilation and groups of a convolution, each size as [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Step between windows.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub padding: [usize; 2],
    /// Step between the taps of a window.
    pub dilation: [usize; 2],
    /// Channels are split into this many independent convolutions.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Self::new(1, 0)
    }
}

impl Conv2dOptions {
    /// Square stride and padding, no dilation, one group.
    pub fn new(stride: usize, padding: usize) -> Self {
        Self { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 }
    }

    /// These options with groups.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }
}

/// The convolution (cross-correlation) of `x` [N, C, H, W] with `weight` [O, C/groups, KH, KW], plus `bias` `[O]`;
/// the result is [N, O, H', W'] with H' = (H + 2·padding − dilation·(KH − 1) − 1)/stride + 1, rounded down.
///
/// # Errors
/// If the shapes do not go together or a window does not fit.
pub fn conv2d(
    tape: &Tape,
    x: &Value,
    weight: &Value,
    bias: Option<&Value>,
    options: Conv2dOptions,
) -> Result<Value> {
    const OP: &str = "conv2d";
    let (&[batch, in_channels, height, width], &[out_channels, per_group, kernel_h, kernel_w]) =
        (x.dims(), weight.dims())
    else {
        let problem =
            format!("expected [N, C, H, W] and [O, I, KH, KW], not {:?} and {:?}", x.shape(), weight.shape());
        return Err(TensorError::shape(OP, problem));
    };
    if per_group * options.groups != in_channels || bias.is_some_and(|b| b.dims() != [out_channels]) {
        let problem = format!(
            "x {:?}, weight {:?}, bias {:?} and {} groups do not go together",
            x.shape(),
            weight.shape(),
            bias.map(Value::shape),
            options.groups
        );
        return Err(TensorError::shape(OP, problem));
    }
    let shape = Conv2dShape {
        batch,
        in_channels,
        height,
        width,
        out_channels,
        kernel: [kernel_h, kernel_w],
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
        groups: options.groups,
    };
    shape.validate()?;
    let cx = tape.context();
    let out_dims = [batch, out_channels, shape.out_height(), shape.out_width()];
    let (x_t, w_t) = (x.tensor()?.contiguous()?, weight.tensor()?.contiguous()?);
    let b_t = bias.map(Value::tensor).transpose()?;
    let dtype = x_t.dtype();
    let output = {
        let (x, w) = (
            operand(OP, tape.context(), tape.session().precision, &x_t)?,
            operand(OP, tape.context(), tape.session().precision, &w_t)?,
        );
        let b = b_t.as_ref().map(|b| Contiguous::by(OP, tape.context(), b)).transpose()?;
        dispatch!(OP, dtype, T => {
            let bias = b.as_ref().map(|b| b.slice::<T>()).transpose()?;
            let mut y = unwritten::<T>(out_dims.iter().product());
            conv2d_forward(cx, &shape, x.slice::<T>()?, w.slice::<T>()?, bias, &mut y)?;
            stored(cx, y, out_dims.to_vec(), tape.session().precision.product(dtype))
        })?
    };
    let (x_saved, w_saved) = (x.save(), weight.save());
    let (x_dims, w_dims) = (x.dims().to_vec(), weight.dims().to_vec());
    let none = Value::constant(Tensor::zeros(0, dtype, x_t.device())?);
    tape.push(OP, &[x, weight, bias.unwrap_or(&none)], output, move |tape, grad, grads| { let grad = &grad.tensor()?;
        let cx = tape.context();
        let grad = grad.contiguous()?;
        let dy = operand(OP, tape.context(), tape.session().precision, &grad)?;
        dispatch!(OP, dtype, T => {
            let dy = dy.slice::<T>()?;
            if grads.wants(1) {
                let x = x_saved.array()?.tensor()?.contiguous()?;
                let x = operand(OP, tape.context(), tape.session().precision, &x)?;
                let x = x.slice::<T>()?;
                grads.write(cx, 1, &w_dims, T::DTYPE, |to, add| {
 crate::storage::with_slice_mut::<T, _>(OP, to.host(OP)?, |dw| Ok(conv2d_backward_weight(cx, &shape, x, dy, dw, add)?))
 })?;
            }
            if grads.wants(2) {
                grads.write(cx, 2, &[shape.out_channels], T::DTYPE, |to, add| {
 crate::storage::with_slice_mut::<T, _>(OP, to.host(OP)?, |db| Ok(conv2d_backward_bias(cx, &shape, dy, db, add)?))
 })?;
            }
            if grads.wants(0) {
                let w = w_saved.array()?.tensor()?.contiguous()?;
                let w = operand(OP, tape.context(), tape.session().precision, &w)?;
                let mut dx = unwritten::<T>(x_dims.iter().product());
                conv2d_backward_input(cx, &shape, dy, w.slice::<T>()?, &mut dx)?;
                grads.add(0, tensor_from(dx, x_dims)?)?;
            }
            Ok(())
        })
    })
}
