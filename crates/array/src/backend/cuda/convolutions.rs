//! Convolutions by cuDNN. The kernels compute depthwise ones, because cuDNN's are slow.
//!
//! A convolution has one element type in cuDNN. So gradients of parameters in bf16 and f16 are rounded to it once, as
//! under `torch.autocast`, and the input's gradient keeps it.

use candle_core::DType;
use phalanx_cuda::dnn::{Convolution, ConvolutionFormat};
use phalanx_cuda::{Slice, TensorLayout, kernels};

use super::{Cuda, argument, element_type};
use crate::backend::{
    Array, BinaryOp, Conv2dShape, ConvBackward, ConvForward, ConvTranspose2dShape, Convolutions, Destination,
};
use crate::{ArrayError, Precision, Result};

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

/// The precision and memory order of a convolution. Tensor cores read images channels-last; other arithmetic uses
/// row-major order.
struct Run<'a> {
    cuda: &'a Cuda,
    op: &'static str,
    precision: Precision,
    last: bool,
}

impl Run<'_> {
    fn layout(&self) -> TensorLayout {
        if self.last { TensorLayout::ChannelsLast } else { TensorLayout::ChannelsFirst }
    }

    fn format(&self) -> ConvolutionFormat {
        ConvolutionFormat { layout: self.layout(), tf32: self.precision == Precision::Tf32 }
    }

    /// Returns images, or weights, as an operand.
    fn operand(&self, array: &Array) -> Result<Slice> {
        if !self.last {
            return self.cuda.operand(self.op, self.precision, array);
        }
        let slice = self.cuda.last(self.op, array)?;
        let dtype = element_type(self.op, self.precision.product(array.dtype()))?;
        Ok(kernels::convert(self.cuda.gpu(), &slice, dtype)?)
    }

    /// Makes an array of computed images, plus a bias for each channel.
    fn made(&self, y: Slice, [n, c, h, w]: [usize; 4], bias: Option<&Array>) -> Result<Array> {
        let add = |dims: [usize; 4], channels: &[usize], bias: &Array| {
            let bias = (self.cuda.slice(self.op, bias)?, channels);
            Ok::<_, ArrayError>(kernels::binary(
                self.cuda.gpu(),
                BinaryOp::Add,
                (&y, &dims),
                bias,
                y.dtype(),
            )?)
        };
        match (self.last, bias) {
            (true, None) => Ok(self.cuda.array_last(y, (n, c, h, w))),
            (true, Some(bias)) => Ok(self.cuda.array_last(add([n, h, w, c], &[c], bias)?, (n, c, h, w))),
            (false, None) => Ok(self.cuda.array(y, (n, c, h, w))),
            (false, Some(bias)) => Ok(self.cuda.array(add([n, c, h, w], &[c, 1, 1], bias)?, (n, c, h, w))),
        }
    }

    /// Writes the gradient of a bias: the sums over images and pixels.
    fn write_bias(&self, dy: &Array, [n, c, h, w]: [usize; 4], to: &Destination) -> Result<()> {
        let gpu = self.cuda.gpu();
        let sums = if self.last {
            let dy = self.cuda.last(self.op, dy)?;
            kernels::sum_over(gpu, &dy, [1, n * h * w, c], dy.dtype().wide())?
        } else {
            let dy = self.cuda.slice(self.op, dy)?;
            let rows = kernels::sum_over(gpu, dy, [n * c, h * w, 1], dy.dtype().wide())?;
            kernels::sum_over(gpu, &rows, [1, n, c], rows.dtype())?
        };
        self.cuda.write(self.op, &sums, to)
    }

    /// Writes the gradient of a weight.
    fn write_weight(&self, of: &Convolution, [x, dy]: [&Slice; 2], to: &Destination) -> Result<()> {
        let (gpu, target) = (self.cuda.gpu(), self.cuda.slice(self.op, &to.array)?);
        if !self.last && target.dtype() == x.dtype() {
            return Ok(self.cuda.dnn()?.backward_weight(of, self.format(), x, dy, target, to.add)?);
        }
        let mut dw = gpu.unwritten(x.dtype(), of.weight_len())?;
        self.cuda.dnn()?.backward_weight(of, self.format(), x, dy, &dw, false)?;
        if self.last {
            let dims = [of.out_channels, of.kernel[0], of.kernel[1], of.in_channels / of.groups];
            dw = kernels::permute(gpu, &dw, &dims, &[0, 3, 1, 2])?;
        }
        self.cuda.write(self.op, &dw, to)
    }
}

/// The precision of a convolution whose result has this type. cuDNN's have one element type: tensor cores multiply numbers of 16 bits as
/// TF32, exactly, for a result in f32.
fn precision_for(precision: Precision, dtype: DType) -> Precision {
    match (precision, dtype) {
        (Precision::Bf16 | Precision::F16, DType::F32) => Precision::Tf32,
        _ => precision,
    }
}

impl Cuda {
    fn run(&self, op: &'static str, precision: Precision, x: &Array) -> Run<'_> {
        let last = precision != Precision::F32 && x.dtype() != DType::F64;
        Run { cuda: self, op, precision, last }
    }

    /// Writes a gradient to its destination.
    pub(super) fn write(&self, op: &'static str, from: &Slice, to: &Destination) -> Result<()> {
        let target = self.slice(op, &to.array)?;
        match to.add {
            true => Ok(kernels::accumulate(self.gpu(), target, from)?),
            false => Ok(kernels::convert_to(self.gpu(), from, target)?),
        }
    }
}

impl Convolutions for Cuda {
    fn conv2d(&self, of: ConvForward<'_, Conv2dShape>) -> Result<Array> {
        let ConvForward { shape, x, weight, bias, precision, dtype } = of;
        let run = self.run("conv2d", precision_for(precision, dtype), x);
        let of = convolution(shape);
        let (x, w) = (run.operand(x)?, run.operand(weight)?);
        let y = if kernels::depthwise_supports(run.layout(), shape) {
            kernels::depthwise(self.gpu(), run.layout(), shape, &x, &w)?
        } else {
            let y = self.gpu().unwritten(x.dtype(), of.output_len())?;
            self.dnn()?.forward(&of, run.format(), &x, &w, &y)?;
            y
        };
        run.made(y, [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()], bias)
    }

    fn conv2d_backward(&self, of: ConvBackward<'_, Conv2dShape>) -> Result<Option<Array>> {
        let ConvBackward { shape, dy, weight, bias, input, precision } = of;
        let run = self.run("conv2d", precision, dy);
        let (of, layout) = (convolution(shape), run.layout());
        let depthwise = kernels::depthwise_supports(layout, shape);
        if let Some(to) = bias {
            let dims = [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
            run.write_bias(dy, dims, to)?;
        }
        let dy = run.operand(dy)?;
        if let Some((x, to)) = weight {
            let x = run.operand(x)?;
            if depthwise {
                let dw = kernels::depthwise_backward_weight(self.gpu(), layout, shape, &x, &dy)?;
                self.write(run.op, &dw, to)?;
            } else {
                run.write_weight(&of, [&x, &dy], to)?;
            }
        }
        let Some(w) = input else { return Ok(None) };
        let w = run.operand(w)?;
        let dx = if depthwise {
            kernels::depthwise_backward_input(self.gpu(), layout, shape, &dy, &w)?
        } else {
            let dx = self.gpu().unwritten(dy.dtype(), of.input_len())?;
            self.dnn()?.backward_input(&of, run.format(), &dy, &w, &dx)?;
            dx
        };
        Ok(Some(run.made(dx, [shape.batch, shape.in_channels, shape.height, shape.width], None)?))
    }

    fn conv_transpose2d(&self, of: ConvForward<'_, ConvTranspose2dShape>) -> Result<Array> {
        let ConvForward { shape, x, weight, bias, precision, dtype } = of;
        let run = self.run("conv_transpose2d", precision_for(precision, dtype), x);
        // The transposed convolution is the gradient of a convolution's input.
        let of = transposed(run.op, shape)?;
        let (x, w) = (run.operand(x)?, run.operand(weight)?);
        let y = self.gpu().unwritten(x.dtype(), of.input_len())?;
        self.dnn()?.backward_input(&of, run.format(), &x, &w, &y)?;
        run.made(y, [of.batch, of.in_channels, of.height, of.width], bias)
    }

    fn conv_transpose2d_backward(&self, of: ConvBackward<'_, ConvTranspose2dShape>) -> Result<Option<Array>> {
        let ConvBackward { shape, dy, weight, bias, input, precision } = of;
        let run = self.run("conv_transpose2d", precision, dy);
        let of = transposed(run.op, shape)?;
        if let Some(to) = bias {
            run.write_bias(dy, [of.batch, of.in_channels, of.height, of.width], to)?;
        }
        let dy = run.operand(dy)?;
        if let Some((x, to)) = weight {
            // Input and output are exchanged.
            run.write_weight(&of, [&dy, &run.operand(x)?], to)?;
        }
        let Some(w) = input else { return Ok(None) };
        let w = run.operand(w)?;
        let dx = self.gpu().unwritten(dy.dtype(), of.output_len())?;
        self.dnn()?.forward(&of, run.format(), &dy, &w, &dx)?;
        Ok(Some(run.made(dx, [shape.batch, shape.in_channels, shape.height, shape.width], None)?))
    }
}

/// Returns the convolution whose transpose this is.
fn transposed(op: &'static str, shape: &ConvTranspose2dShape) -> Result<Convolution> {
    let of = convolution(&shape.convolution()?);
    if of.output() == Some([shape.height, shape.width]) {
        return Ok(of);
    }
    Err(argument(op, format!("no convolution has these sizes: {shape:?}")))
}
