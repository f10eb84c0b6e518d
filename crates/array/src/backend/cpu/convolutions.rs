//! Convolutions with the CPU kernels.

use phalanx_kernels::{
    conv_transpose2d_backward_input, conv_transpose2d_backward_weight, conv_transpose2d_forward,
    conv2d_backward_bias, conv2d_backward_input, conv2d_backward_weight, conv2d_forward,
};

use crate::backend::{Array, Conv2dShape, ConvBackward, ConvForward, ConvTranspose2dShape, Convolutions};
use crate::storage::{Contiguous, dispatch, operand, stored, tensor_from, unwritten, with_slice_mut};
use crate::{Context, Result};

impl Convolutions for Context {
    fn conv2d(&self, of: ConvForward<'_, Conv2dShape>) -> Result<Array> {
        let ConvForward { shape, x, weight, bias, precision, dtype: to } = of;
        const OP: &str = "conv2d";
        let (x, w) = (x.host(OP)?, weight.host(OP)?);
        let dtype = x.dtype();
        let (x, w) = (operand(OP, self, precision, x)?, operand(OP, self, precision, w)?);
        let bias = bias.map(|bias| Contiguous::by(OP, self, bias.host(OP)?)).transpose()?;
        let dims = vec![shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
        dispatch!(OP, dtype, T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let mut y = unwritten::<T>(shape.output_len());
            conv2d_forward(self, shape, x.slice::<T>()?, w.slice::<T>()?, bias, &mut y)?;
            Ok(stored(self, y, dims, to)?.into())
        })
    }

    fn conv2d_backward(&self, of: ConvBackward<'_, Conv2dShape>) -> Result<Option<Array>> {
        const OP: &str = "conv2d";
        let ConvBackward { shape, dy, weight, bias, input, precision } = of;
        let grad = dy.host(OP)?;
        let dy = operand(OP, self, precision, grad)?;
        dispatch!(OP, grad.dtype(), T => {
            let dy = dy.slice::<T>()?;
            if let Some((x, to)) = weight {
                let x = operand(OP, self, precision, x.host(OP)?)?;
                let x = x.slice::<T>()?;
                with_slice_mut::<T, _>(OP, to.array.host(OP)?, |dw| {
                    Ok(conv2d_backward_weight(self, shape, x, dy, dw, to.add)?)
                })?;
            }
            if let Some(to) = bias {
                with_slice_mut::<T, _>(OP, to.array.host(OP)?, |db| {
                    Ok(conv2d_backward_bias(self, shape, dy, db, to.add)?)
                })?;
            }
            let Some(w) = input else { return Ok(None) };
            let w = operand(OP, self, precision, w.host(OP)?)?;
            let mut dx = unwritten::<T>(shape.input_len());
            conv2d_backward_input(self, shape, dy, w.slice::<T>()?, &mut dx)?;
            let dims = (shape.batch, shape.in_channels, shape.height, shape.width);
            Ok(Some(tensor_from(dx, dims)?.into()))
        })
    }

    fn conv_transpose2d(&self, of: ConvForward<'_, ConvTranspose2dShape>) -> Result<Array> {
        let ConvForward { shape, x, weight, bias, precision, dtype: to } = of;
        const OP: &str = "conv_transpose2d";
        let (x, w) = (x.host(OP)?, weight.host(OP)?);
        let dtype = x.dtype();
        let (x, w) = (operand(OP, self, precision, x)?, operand(OP, self, precision, w)?);
        let bias = bias.map(|bias| Contiguous::by(OP, self, bias.host(OP)?)).transpose()?;
        let convolution = shape.convolution()?;
        let dims = vec![shape.batch, shape.out_channels, convolution.height, convolution.width];
        dispatch!(OP, dtype, T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let mut y = unwritten::<T>(dims.iter().product());
            conv_transpose2d_forward(self, shape, x.slice::<T>()?, w.slice::<T>()?, bias, &mut y)?;
            Ok(stored(self, y, dims, to)?.into())
        })
    }

    fn conv_transpose2d_backward(&self, of: ConvBackward<'_, ConvTranspose2dShape>) -> Result<Option<Array>> {
        const OP: &str = "conv_transpose2d";
        let ConvBackward { shape, dy, weight, bias, input, precision } = of;
        let grad = dy.host(OP)?;
        let dy = operand(OP, self, precision, grad)?;
        dispatch!(OP, grad.dtype(), T => {
            let dy = dy.slice::<T>()?;
            if let Some((x, to)) = weight {
                let x = operand(OP, self, precision, x.host(OP)?)?;
                let x = x.slice::<T>()?;
                with_slice_mut::<T, _>(OP, to.array.host(OP)?, |dw| {
                    Ok(conv_transpose2d_backward_weight(self, shape, x, dy, dw, to.add)?)
                })?;
            }
            if let Some(to) = bias {
                // The sum over pixels is that of any convolution with such an output.
                let like = Conv2dShape {
                    in_channels: 1, out_channels: shape.out_channels, kernel: [1; 2], stride: [1; 2],
                    padding: [0; 2], dilation: [1; 2], groups: 1, ..shape.convolution()?
                };
                with_slice_mut::<T, _>(OP, to.array.host(OP)?, |db| {
                    Ok(conv2d_backward_bias(self, &like, dy, db, to.add)?)
                })?;
            }
            let Some(w) = input else { return Ok(None) };
            let w = operand(OP, self, precision, w.host(OP)?)?;
            let dims = (shape.batch, shape.in_channels, shape.height, shape.width);
            let mut dx = unwritten::<T>(shape.batch * shape.in_channels * shape.height * shape.width);
            conv_transpose2d_backward_input(self, shape, dy, w.slice::<T>()?, &mut dx)?;
            Ok(Some(tensor_from(dx, dims)?.into()))
        })
    }
}
