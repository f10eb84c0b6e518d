//! Elementwise functions, products, convolutions, pooling.

use candle_core::{DType, Shape};
use phalanx_tensor::backend::{
    Array, Attended, AttentionShape, BinaryOp, Conv2dShape, ConvBackward, ConvTranspose2dShape, Convolutions,
    Destination, Elementwise, Factor, Pool2dShape, Pooling, Products, UnaryOp,
};
use phalanx_tensor::{Context, Precision, Result};

use super::Checking;

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

    fn geglu(&self, x: &Array) -> Result<Array> {
        self.hide(&self.cpu().geglu(&self.open("geglu", x)?)?)
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        self.hide(&self.cpu().geglu_backward(&self.open("geglu", x)?, &self.open("geglu", dy)?)?)
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

impl Products for Checking {
    fn matmul(
        &self,
        sizes: [usize; 4],
        a: Factor<'_>,
        b: Factor<'_>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        let (left, right) = (self.open("matmul", a.array)?, self.open("matmul", b.array)?);
        let (a, b) = (Factor { array: &left, ..a }, Factor { array: &right, ..b });
        self.hide(&self.cpu().matmul(sizes, a, b, shape, precision, dtype)?)
    }

    fn linear(
        &self,
        sizes: [usize; 3],
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        let (x, weight) = (self.open("linear", x)?, self.open("linear", weight)?);
        let bias = self.open_if("linear", bias)?;
        self.hide(&self.cpu().linear(sizes, &x, &weight, bias.as_ref(), shape, precision, dtype)?)
    }

    fn linear_backward_weight(
        &self,
        sizes: [usize; 3],
        dy: &Array,
        x: &Array,
        precision: Precision,
        to: &Destination,
    ) -> Result<()> {
        let to = self.open_destination(to)?;
        let (dy, x) = (self.open("linear", dy)?, self.open("linear", x)?);
        self.cpu().linear_backward_weight(sizes, &dy, &x, precision, &to)
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

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Array,
        k: &Array,
        v: &Array,
        precision: Precision,
    ) -> Result<Attended> {
        let open = |array| self.open("attention", array);
        let attended = self.cpu().attention(shape, &open(q)?, &open(k)?, &open(v)?, precision)?;
        Ok(Attended { output: self.hide(&attended.output)?, saved: self.hide(&attended.saved)? })
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        [q, k, v]: [&Array; 3],
        saved: &Array,
        grad: &Array,
        precision: Precision,
        wants: [bool; 3],
    ) -> Result<[Option<Array>; 3]> {
        let open = |array| self.open("attention", array);
        let (q, k, v, saved, grad) = (open(q)?, open(k)?, open(v)?, open(saved)?, open(grad)?);
        let [q, k, v] =
            self.cpu().attention_backward(shape, [&q, &k, &v], &saved, &grad, precision, wants)?;
        let hide = |array: Option<Array>| array.map(|array| self.hide(&array)).transpose();
        Ok([hide(q)?, hide(k)?, hide(v)?])
    }
}

impl Checking {
    fn open_destination(&self, to: &Destination) -> Result<Destination> {
        Ok(Destination { array: self.open("gradient", &to.array)?, add: to.add })
    }

    /// Runs the backward of a convolution on what is inside.
    fn convolved(
        &self,
        wanted: ConvBackward<'_>,
        run: impl FnOnce(&Context, ConvBackward<'_>) -> Result<Option<Array>>,
    ) -> Result<Option<Array>> {
        let ConvBackward { dy, weight, bias, input, precision } = wanted;
        let dy = self.open("conv2d", dy)?;
        let weight = weight.map(|(x, to)| {
            Ok::<_, phalanx_tensor::TensorError>((self.open("conv2d", x)?, self.open_destination(to)?))
        });
        let weight = weight.transpose()?;
        let bias = bias.map(|to| self.open_destination(to)).transpose()?;
        let input = self.open_if("conv2d", input)?;
        let wanted = ConvBackward {
            dy: &dy,
            weight: weight.as_ref().map(|(x, to)| (x, to)),
            bias: bias.as_ref(),
            input: input.as_ref(),
            precision,
        };
        run(self.cpu(), wanted)?.map(|dx| self.hide(&dx)).transpose()
    }
}

impl Convolutions for Checking {
    fn conv2d(
        &self,
        shape: &Conv2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array> {
        let (x, weight) = (self.open("conv2d", x)?, self.open("conv2d", weight)?);
        let bias = self.open_if("conv2d", bias)?;
        self.hide(&self.cpu().conv2d(shape, &x, &weight, bias.as_ref(), precision)?)
    }

    fn conv2d_backward(&self, shape: &Conv2dShape, wanted: ConvBackward<'_>) -> Result<Option<Array>> {
        self.convolved(wanted, |cpu, wanted| cpu.conv2d_backward(shape, wanted))
    }

    fn conv_transpose2d(
        &self,
        shape: &ConvTranspose2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array> {
        let (x, weight) = (self.open("conv_transpose2d", x)?, self.open("conv_transpose2d", weight)?);
        let bias = self.open_if("conv_transpose2d", bias)?;
        self.hide(&self.cpu().conv_transpose2d(shape, &x, &weight, bias.as_ref(), precision)?)
    }

    fn conv_transpose2d_backward(
        &self,
        shape: &ConvTranspose2dShape,
        wanted: ConvBackward<'_>,
    ) -> Result<Option<Array>> {
        self.convolved(wanted, |cpu, wanted| cpu.conv_transpose2d_backward(shape, wanted))
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
        self.hide(&self.cpu().upsample_nearest2d_backward(
            dims,
            factor,
            &self.open("upsample_nearest2d", dy)?,
        )?)
    }
}
