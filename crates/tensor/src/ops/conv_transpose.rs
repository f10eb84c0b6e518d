//! Transposed two-dimensional convolution.

use super::Conv2dOptions;
use super::conv::ConvKept;
use crate::backend::{ConvForward, ConvTranspose2dShape};
use crate::tape::{Op, Tape, Value};
use crate::{Result, TensorError};

/// Computes the transposed convolution of `x` [N, C, H, W] with `weight` [C, O/groups, KH, KW] and adds `bias` `[O]`,
/// as `torch.nn.functional.conv_transpose2d`. The result is [N, O, H', W'] with H' = (H − 1)·stride − 2·padding +
/// dilation·(KH − 1) + output_padding + 1.
///
/// # Errors
/// If the shapes do not match.
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
            "x {:?}, weight {:?}, bias {:?} and {} groups do not match",
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
    let multiply_adds = shape.convolution()?.multiply_adds();
    let (x_t, w_t) = (x.contiguous()?, weight.contiguous()?);
    let b_t = bias.map(Value::contiguous).transpose()?;
    let precision = tape.session().precision;
    let dtype = precision.product(x_t.dtype());
    let of = ConvForward { shape: &shape, x: &x_t, weight: &w_t, bias: b_t.as_ref(), precision, dtype };
    let output = x_t.backend(tape.context()).conv_transpose2d(of)?;
    tape.count_forward(multiply_adds);
    let kept = ConvKept::new((x, weight, bias), shape, multiply_adds, |backend, of| {
        Ok(backend.conv_transpose2d_backward(of)?)
    });
    let none = Value::absent()?;
    let inputs = [x, weight, bias.unwrap_or(&none)];
    tape.push(Op::ConvTranspose2d(shape), &inputs, output, move |tape, grad, grads| {
        kept.backward(tape, grad, grads)
    })
}
