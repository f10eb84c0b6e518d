//! Elementwise functions, products, convolutions, pooling.

use candle_core::{DType, Shape};
use phalanx_tensor::Precision;
use phalanx_tensor::backend::{
    Array, BinaryOp, Conv2dShape, ConvBackward, ConvForward, ConvTranspose2dShape, Convolutions, Destination,
    Elementwise, Factor, GatedUnits, LinearProduct, LinearWeightGrad, MatrixProduct, Pool2dShape, Pooling,
    Products, RotaryAngles, RotaryEmbeddings, UnaryOp,
};

use super::{Checking, Result};

impl Elementwise for Checking {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        self.hide(&self.cpu().binary(op, &self.open(op.name(), a)?, &self.open(op.name(), b)?)?)
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        self.hide(&self.cpu().mul_backward(&self.open("mul", grad)?, &self.open("mul", other)?, shape)?)
    }

    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array> {
        self.hide(&self.cpu().affine(&self.open("affine", x)?, factor, addend)?)
    }

    fn neg(&self, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().neg(&self.open("neg", x)?)?)
    }

    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().unary(op, &self.open("unary", x)?)?)
    }

    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        let open = |array| self.open("unary", array);
        self.hide(&self.cpu().unary_backward(op, &open(x)?, &open(y)?, &open(dy)?)?)
    }

    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array> {
        self.hide(&self.cpu().sum_all(&self.open("sum", x)?, factor)?)
    }

    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array> {
        self.hide(&self.cpu().sum_over(&self.open("sum_over", x)?, dim)?)
    }

    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array> {
        self.hide(&self.cpu().sum_to_shape(&self.open("sum_to_shape", grad)?, shape)?)
    }
}

impl GatedUnits for Checking {
    fn geglu(&self, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().geglu(&self.open("geglu", x)?)?)
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        self.hide(&self.cpu().geglu_backward(&self.open("geglu", x)?, &self.open("geglu", dy)?)?)
    }

    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array> {
        self.hide(&self.cpu().swiglu(&self.open("swiglu", gate)?, &self.open("swiglu", value)?)?)
    }

    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]> {
        let open = |array| self.open("swiglu", array);
        let [gate, value] = self.cpu().swiglu_backward(&open(gate)?, &open(value)?, &open(dy)?)?;
        Ok([self.hide(&gate)?, self.hide(&value)?])
    }
}

impl RotaryEmbeddings for Checking {
    fn rotary_angles(&self, positions: &Array, frequencies: &[f64], scale: f64) -> Result<RotaryAngles> {
        let positions = self.open("rotary", positions)?;
        let RotaryAngles { cos, sin } = self.cpu().rotary_angles(&positions, frequencies, scale)?;
        Ok(RotaryAngles { cos: self.hide(&cos)?, sin: self.hide(&sin)? })
    }

    fn rotary(&self, x: &Array, angles: &RotaryAngles, inverse: bool) -> Result<Array> {
        let open = |array| self.open("rotary", array);
        let angles = RotaryAngles { cos: open(&angles.cos)?, sin: open(&angles.sin)? };
        self.hide(&self.cpu().rotary(&open(x)?, &angles, inverse)?)
    }
}

impl Products for Checking {
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array> {
        self.hide(&self.cpu().rounded(&self.open("round", x)?, precision)?)
    }

    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array> {
        let (left, right) = (self.open("matmul", of.a.array)?, self.open("matmul", of.b.array)?);
        let (a, b) = (Factor { array: &left, ..of.a }, Factor { array: &right, ..of.b });
        self.hide(&self.cpu().matmul(MatrixProduct { a, b, ..of })?)
    }

    fn linear(&self, of: LinearProduct<'_>) -> Result<Array> {
        let (x, array) = (&self.open("linear", of.x)?, &self.open("linear", of.weight.array)?);
        let weight = Factor { array, ..of.weight };
        let bias = self.open_if("linear", of.bias)?;
        self.hide(&self.cpu().linear(LinearProduct { x, weight, bias: bias.as_ref(), ..of })?)
    }

    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()> {
        let (dy, x) = (&self.open("linear", of.dy)?, &self.open("linear", of.x)?);
        self.cpu().linear_backward_weight(LinearWeightGrad { dy, x, ..of }, &self.open_destination(to)?)
    }

    fn linear_backward_bias(&self, sizes: [usize; 3], dy: &Array) -> Result<Array> {
        self.hide(&self.cpu().linear_backward_bias(sizes, &self.open("linear", dy)?)?)
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        self.hide(&self.cpu().softmax(&self.open("softmax", x)?, dtype)?)
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        self.hide(&self.cpu().softmax_backward(&self.open("softmax", y)?, &self.open("softmax", dy)?)?)
    }
}

impl Checking {
    fn open_destination(&self, to: &Destination) -> Result<Destination> {
        Ok(Destination { array: self.open("gradient", &to.array)?, add: to.add })
    }

    /// Runs a convolution on the wrapped arrays.
    fn convolve<S: Copy>(
        &self,
        of: ConvForward<'_, S>,
        run: impl FnOnce(ConvForward<'_, S>) -> Result<Array>,
    ) -> Result<Array> {
        let (x, weight) = (&self.open("convolution", of.x)?, &self.open("convolution", of.weight)?);
        let bias = self.open_if("convolution", of.bias)?;
        self.hide(&run(ConvForward { x, weight, bias: bias.as_ref(), ..of })?)
    }

    /// Runs the backward of a convolution on the wrapped arrays.
    fn convolve_backward<S: Copy>(
        &self,
        of: ConvBackward<'_, S>,
        run: impl FnOnce(ConvBackward<'_, S>) -> Result<Option<Array>>,
    ) -> Result<Option<Array>> {
        let dy = &self.open("convolution", of.dy)?;
        let weight = of.weight.map(|(x, to)| {
            Ok::<_, phalanx_tensor::ArrayError>((self.open("convolution", x)?, self.open_destination(to)?))
        });
        let weight = weight.transpose()?;
        let bias = of.bias.map(|to| self.open_destination(to)).transpose()?;
        let input = self.open_if("convolution", of.input)?;
        let (weight, bias, input) = (weight.as_ref().map(|(x, to)| (x, to)), bias.as_ref(), input.as_ref());
        run(ConvBackward { dy, weight, bias, input, ..of })?.map(|dx| self.hide(&dx)).transpose()
    }
}

impl Convolutions for Checking {
    fn conv2d(&self, of: ConvForward<'_, Conv2dShape>) -> Result<Array> {
        self.convolve(of, |of| self.cpu().conv2d(of))
    }

    fn conv2d_backward(&self, of: ConvBackward<'_, Conv2dShape>) -> Result<Option<Array>> {
        self.convolve_backward(of, |of| self.cpu().conv2d_backward(of))
    }

    fn conv_transpose2d(&self, of: ConvForward<'_, ConvTranspose2dShape>) -> Result<Array> {
        self.convolve(of, |of| self.cpu().conv_transpose2d(of))
    }

    fn conv_transpose2d_backward(&self, of: ConvBackward<'_, ConvTranspose2dShape>) -> Result<Option<Array>> {
        self.convolve_backward(of, |of| self.cpu().conv_transpose2d_backward(of))
    }
}

impl Pooling for Checking {
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)> {
        let (y, positions) = self.cpu().max_pool2d(shape, &self.open("max_pool2d", x)?)?;
        Ok((self.hide(&y)?, self.hide(&positions)?))
    }

    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, positions: &Array) -> Result<Array> {
        let (dy, positions) = (self.open("max_pool2d", dy)?, self.open("max_pool2d", positions)?);
        self.hide(&self.cpu().max_pool2d_backward(shape, &dy, &positions)?)
    }

    fn avg_pool2d(&self, shape: &Pool2dShape, count_padding: bool, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().avg_pool2d(shape, count_padding, &self.open("avg_pool2d", x)?)?)
    }

    fn avg_pool2d_backward(&self, shape: &Pool2dShape, count_padding: bool, dy: &Array) -> Result<Array> {
        self.hide(&self.cpu().avg_pool2d_backward(shape, count_padding, &self.open("avg_pool2d", dy)?)?)
    }

    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().upsample_nearest2d(dims, factor, &self.open("upsample_nearest2d", x)?)?)
    }

    fn upsample_nearest2d_backward(&self, dims: [usize; 4], factor: usize, dy: &Array) -> Result<Array> {
        let dy = self.open("upsample_nearest2d", dy)?;
        self.hide(&self.cpu().upsample_nearest2d_backward(dims, factor, &dy)?)
    }
}
