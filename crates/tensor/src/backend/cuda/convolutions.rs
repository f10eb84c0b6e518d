//! Convolutions, by cuDNN; depthwise ones by the kernels, as cuDNN's are slow.
//!
//! All of one convolution has one element type there, so that gradients of parameters in bf16 and f16 are rounded to those once,
//! as under `torch.autocast`, and that of the input stays in them.

use phalanx_cuda::dnn::{Convolution, Layout, Reading};
use phalanx_cuda::{Slice, kernels};

use super::{Cuda, argument};
use crate::backend::{Array, Conv2dShape, ConvBackward, ConvTranspose2dShape, Convolutions, Destination};
use crate::{Precision, Result};

/// How elements are read, at a precision.
fn reading(precision: Precision) -> Reading {
    Reading { layout: Layout::ChannelsFirst, tf32: precision == Precision::Tf32 }
}

fn convolution(shape: &Conv2dShape) -> Convolution {
    Convolution {
        batch: shape.batch,
        in_channels: shape.in_channels,
        height: shape.height,
        width: shape.width,
        out_channels: shape.out_channels,
        kernel: shape.kernel,
        stride: shape.stride,
        padding: shape.padding,
        dilation: shape.dilation,
        groups: shape.groups,
    }
}

impl Cuda {
    /// Adds a number for each channel to images [N, C, H·W].
    fn add_channels(
        &self,
        op: &'static str,
        y: Slice,
        dims: [usize; 4],
        bias: Option<&Array>,
    ) -> Result<Slice> {
        let Some(bias) = bias else { return Ok(y) };
        let (bias, channels) = (self.slice(op, bias)?, [dims[1], 1, 1]);
        let dtype = y.dtype();
        let added = (bias, &channels[..]);
        Ok(kernels::binary(self.gpu(), kernels::BinaryOp::Add, (&y, &dims), added, dtype)?)
    }

    /// Writes the sums over images and pixels of [N, C, H·W].
    fn sum_channels(
        &self,
        op: &'static str,
        dy: &Slice,
        [batch, channels, pixels]: [usize; 3],
        to: &Destination,
    ) -> Result<()> {
        let rows = kernels::sum_over(self.gpu(), dy, [batch * channels, pixels, 1], dy.dtype().wide())?;
        let sums = kernels::sum_over(self.gpu(), &rows, [1, batch, channels], rows.dtype())?;
        self.write(op, &sums, to)
    }

    /// Writes what was computed where it is to go.
    pub(super) fn write(&self, op: &'static str, from: &Slice, to: &Destination) -> Result<()> {
        let target = self.slice(op, &to.array)?;
        match to.add {
            true => Ok(kernels::accumulate(self.gpu(), target, from)?),
            false => Ok(kernels::convert_to(self.gpu(), from, target)?),
        }
    }

    /// Writes the gradient of a convolution's weight.
    fn write_weight(
        &self,
        op: &'static str,
        of: &Convolution,
        [x, dy]: [&Slice; 2],
        precision: Precision,
        to: &Destination,
    ) -> Result<()> {
        let target = self.slice(op, &to.array)?;
        if target.dtype() == x.dtype() {
            return Ok(self.dnn()?.backward_weight(of, reading(precision), x, dy, target, to.add)?);
        }
        let dw = self.gpu().unwritten(x.dtype(), of.weight_len())?;
        self.dnn()?.backward_weight(of, reading(precision), x, dy, &dw, false)?;
        self.write(op, &dw, to)
    }
}

impl Convolutions for Cuda {
    fn conv2d(
        &self,
        shape: &Conv2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array> {
        const OP: &str = "conv2d";
        let of = convolution(shape);
        let (x, w) = (self.operand(OP, precision, x)?, self.operand(OP, precision, weight)?);
        let dims = [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
        let y = if kernels::depthwise_supports(shape) {
            kernels::depthwise(self.gpu(), shape, &x, &w)?
        } else {
            let y = self.gpu().unwritten(x.dtype(), of.output_len())?;
            self.dnn()?.forward(&of, reading(precision), &x, &w, &y)?;
            y
        };
        Ok(self.array(self.add_channels(OP, y, dims, bias)?, dims.to_vec()))
    }

    fn conv2d_backward(&self, shape: &Conv2dShape, wanted: ConvBackward<'_>) -> Result<Option<Array>> {
        const OP: &str = "conv2d";
        let ConvBackward { dy, weight, bias, input, precision } = wanted;
        let of = convolution(shape);
        let pixels = shape.out_height() * shape.out_width();
        if let Some(to) = bias {
            self.sum_channels(OP, self.slice(OP, dy)?, [shape.batch, shape.out_channels, pixels], to)?;
        }
        let dy = self.operand(OP, precision, dy)?;
        let depthwise = kernels::depthwise_supports(shape);
        if let Some((x, to)) = weight {
            let x = self.operand(OP, precision, x)?;
            if depthwise {
                self.write(OP, &kernels::depthwise_backward_weight(self.gpu(), shape, &x, &dy)?, to)?;
            } else {
                self.write_weight(OP, &of, [&x, &dy], precision, to)?;
            }
        }
        let Some(w) = input else { return Ok(None) };
        let w = self.operand(OP, precision, w)?;
        let dx = if depthwise {
            kernels::depthwise_backward_input(self.gpu(), shape, &dy, &w)?
        } else {
            let dx = self.gpu().unwritten(dy.dtype(), of.input_len())?;
            self.dnn()?.backward_input(&of, reading(precision), &dy, &w, &dx)?;
            dx
        };
        Ok(Some(self.array(dx, (shape.batch, shape.in_channels, shape.height, shape.width))))
    }

    fn conv_transpose2d(
        &self,
        shape: &ConvTranspose2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array> {
        const OP: &str = "conv_transpose2d";
        // The gradient of the input of the convolution that it is the transpose of.
        let of = transposed(OP, shape)?;
        let (x, w) = (self.operand(OP, precision, x)?, self.operand(OP, precision, weight)?);
        let dims = [of.batch, of.in_channels, of.height, of.width];
        let y = self.gpu().unwritten(x.dtype(), dims.iter().product())?;
        self.dnn()?.backward_input(&of, reading(precision), &x, &w, &y)?;
        Ok(self.array(self.add_channels(OP, y, dims, bias)?, dims.to_vec()))
    }

    fn conv_transpose2d_backward(
        &self,
        shape: &ConvTranspose2dShape,
        wanted: ConvBackward<'_>,
    ) -> Result<Option<Array>> {
        const OP: &str = "conv_transpose2d";
        let ConvBackward { dy, weight, bias, input, precision } = wanted;
        let of = transposed(OP, shape)?;
        if let Some(to) = bias {
            self.sum_channels(OP, self.slice(OP, dy)?, [of.batch, of.in_channels, of.height * of.width], to)?;
        }
        let dy = self.operand(OP, precision, dy)?;
        if let Some((x, to)) = weight {
            // Input and output change places.
            self.write_weight(OP, &of, [&dy, &self.operand(OP, precision, x)?], precision, to)?;
        }
        let Some(w) = input else { return Ok(None) };
        let w = self.operand(OP, precision, w)?;
        let dx = self.gpu().unwritten(dy.dtype(), of.output_len())?;
        self.dnn()?.forward(&of, reading(precision), &dy, &w, &dx)?;
        Ok(Some(self.array(dx, (shape.batch, shape.in_channels, shape.height, shape.width))))
    }
}

/// The convolution that a transposed one is the transpose of.
fn transposed(op: &'static str, shape: &ConvTranspose2dShape) -> Result<Convolution> {
    let of = convolution(&shape.convolution()?);
    if of.output() == Some([shape.height, shape.width]) {
        return Ok(of);
    }
    Err(argument(op, format!("sizes that no convolution makes: {shape:?}")))
}
