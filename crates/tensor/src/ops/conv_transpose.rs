//! Transposed two-dimensional convolution.

use candle_core::{Tensor, WithDType as _};
use phalanx_kernels::{
    ConvTranspose2dShape, conv_transpose2d_backward_input, conv_transpose2d_backward_weight,
    conv_transpose2d_forward, conv2d_backward_bias,
};

use super::Conv2dOptions;
use crate::storage::unwritten;
use crate::storage::{Contiguous, dispatch, operand, stored, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// The transposed convolution of `x` [N, C, H, W] with `weight` [C, O/groups, KH, KW], plus `bias` `[O]`, as in
/// `torch.nn.functional.conv_transpose2d`; the result is [N, O, H', W'] with
/// H' = (H − 1)·stride − 2·padding + dilation·(KH − 1) + output_padding + 1.
///
/// # Errors
/// If the shapes do not go together.
pub fn conv_transpose2d(
    tape: &Tape,
    x: &Value,
    weight: &Value,
    bias: Option<&Value>,
    options: Conv2dOptions,
    output_padding: [usize; 2],
) -> Result<Value> {
    const OP: &str = "conv_transpose2d";
    let (&[batch, in_channels, height, width], &[weight_inputs, per_group, kernel_h, kernel_w]) =
        (x.dims(), weight.dims())
    else {
        let problem =
            format!("expected [N, C, H, W] and [C, O, KH, KW], not {:?} and {:?}", x.shape(), weight.shape());
        return Err(TensorError::shape(OP, problem));
    };
    let out_channels = per_group * options.groups;
    if weight_inputs != in_channels || bias.is_some_and(|b| b.dims() != [out_channels]) {
        let problem = format!(
            "x {:?}, weight {:?}, bias {:?} and {} groups do not go together",
            x.shape(),
            weight.shape(),
            bias.map(Value::shape),
            options.groups
        );
        return Err(TensorError::shape(OP, problem));
    }
    let shape = ConvTranspose2dShape {
        batch,
        in_channels,
        height,
        width,
        out_channels,
        kernel: [kernel_h, kernel_w],
        stride: options.stride,
        padding: options.padding,
        output_padding,
        dilation: options.dilation,
        groups: options.groups,
    };
    let convolution = shape.convolution()?;
    let out_dims = [batch, out_channels, convolution.height, convolution.width];
    let cx = tape.context();
    let (x_t, w_t) = (x.tensor()?.contiguous()?, weight.tensor()?.contiguous()?);
    let b_t = bias.map(|bias| Ok::<_, TensorError>(bias.tensor()?.contiguous()?)).transpose()?;
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
            conv_transpose2d_forward(cx, &shape, x.slice::<T>()?, w.slice::<T>()?, bias, &mut y)?;
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
 crate::storage::with_slice_mut::<T, _>(OP, to.host(OP)?, |dw| Ok(conv_transpose2d_backward_weight(cx, &shape, x, dy, dw, add)?))
 })?;
            }
            if grads.wants(2) {
                // The sum over pixels is that of any convolution with such an output.
                let like = phalanx_kernels::Conv2dShape {
                    in_channels: 1, out_channels, kernel: [1; 2], stride: [1; 2], padding: [0; 2],
                    dilation: [1; 2], groups: 1, ..convolution
                };
                grads.write(cx, 2, &[out_channels], T::DTYPE, |to, add| {
 crate::storage::with_slice_mut::<T, _>(OP, to.host(OP)?, |db| Ok(conv2d_backward_bias(cx, &like, dy, db, add)?))
 })?;
            }
            if grads.wants(0) {
                let w = w_saved.array()?.tensor()?.contiguous()?;
                let w = operand(OP, tape.context(), tape.session().precision, &w)?;
                let mut dx = unwritten::<T>(x_dims.iter().product());
                conv_transpose2d_backward_input(cx, &shape, dy, w.slice::<T>()?, &mut dx)?;
                grads.add(0, tensor_from(dx, x_dims)?)?;
            }
            Ok(())
        })
    })
}
