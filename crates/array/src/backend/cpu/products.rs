//! Matrix products and softmax with the CPU kernels.

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_kernels::{
    Matrix, MatrixMut, RoundedFactor, RoundedResult, bf16, linear_forward, matmul_batched, matmul_bf16,
    multiply_row_bf16, softmax_rows_backward, softmax_rows_forward, sum_columns,
};

use crate::backend::{Array, Destination, LinearProduct, LinearWeightGrad, MatrixProduct, Products};
use crate::storage::{
    Contiguous, RoundedOperand, cast, dispatch, operand, stored, tensor_from, unwritten, with_bf16_slice,
    with_slice_mut,
};
use crate::{Context, Precision, Result};

impl Products for Context {
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array> {
        let of = x.host("round")?;
        match precision {
            Precision::F32 | Precision::Tf32 => Ok(x.clone()),
            _ if of.dtype() == DType::F64 => Ok(x.clone()),
            _ => Ok(cast(self, of, precision.dtype())?.into()),
        }
    }

    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array> {
        let MatrixProduct { sizes: [batch, m, n, k], a, b, shape, precision, dtype } = of;
        const OP: &str = "matmul";
        let (a_t, b_t) = (a.array.host(OP)?, b.array.host(OP)?);
        let low = |tensor| RoundedOperand::of(OP, self, precision, tensor);
        if let (Some(left), Some(right)) = (low(a_t)?, low(b_t)?) {
            let (left, right) = (left.factor(m, k, a.transposed)?, right.factor(k, n, b.transposed)?);
            return multiply_bf16(self, [batch, m, n], [left, right], None, (shape, dtype));
        }
        let (a_read, b_read) = (operand(OP, self, precision, a_t)?, operand(OP, self, precision, b_t)?);
        dispatch!(OP, a_t.dtype(), T => {
            let mut out = unwritten::<T>(batch * m * n);
            let a = Matrix::batched(a_read.slice::<T>()?, m, k, a.transposed);
            let b = Matrix::batched(b_read.slice::<T>()?, k, n, b.transposed);
            matmul_batched(self, batch, a, b, MatrixMut::batched(&mut out, m, n), false)?;
            Ok(stored(self, out, shape.clone(), dtype)?.into())
        })
    }

    fn linear(&self, of: LinearProduct<'_>) -> Result<Array> {
        const OP: &str = "linear";
        let LinearProduct { sizes: [rows, inputs, outputs], x, weight, bias, shape, precision, dtype } = of;
        let (x, w) = (x.host(OP)?, weight.array.host(OP)?);
        if rows == 1 && w.dtype() == DType::BF16 && x.dtype() != DType::F64 {
            return linear_row_bf16(self, of);
        }
        let bias = bias.map(|bias| Contiguous::by(OP, self, bias.host(OP)?)).transpose()?;
        let low = |tensor| RoundedOperand::of(OP, self, precision, tensor);
        if let (Some(x), Some(w)) = (low(x)?, low(w)?) {
            let factors = [x.factor(rows, inputs, false)?, w.factor(inputs, outputs, weight.transposed)?];
            let bias = bias.as_ref().map(|bias| bias.slice::<f32>()).transpose()?;
            return multiply_bf16(self, [1, rows, outputs], factors, bias, (shape, dtype));
        }
        let (x_read, w_read) = (operand(OP, self, precision, x)?, operand(OP, self, precision, w)?);
        dispatch!(OP, x.dtype(), T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let x = x_read.slice::<T>()?;
            let w = Matrix::batched(w_read.slice::<T>()?, inputs, outputs, weight.transposed);
            let mut y = unwritten::<T>(rows * outputs);
            linear_forward(self, [rows, inputs, outputs], x, w, bias, &mut y)?;
            Ok(stored(self, y, shape.clone(), dtype)?.into())
        })
    }

    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()> {
        let LinearWeightGrad { sizes: [rows, inputs, outputs], dy, x, precision } = of;
        const OP: &str = "linear";
        let (grad, x) = (dy.host(OP)?, x.host(OP)?);
        let low = |tensor| RoundedOperand::of(OP, self, precision, tensor);
        if let (Some(dy), Some(x)) = (low(grad)?, low(x)?) {
            let (dy, x) = (dy.factor(outputs, rows, true)?, x.factor(rows, inputs, false)?);
            return with_slice_mut::<f32, _>(OP, to.array.host(OP)?, |dw| {
                let dw = MatrixMut::batched(dw, outputs, inputs);
                let dw = if to.add { RoundedResult::AddF32(dw) } else { RoundedResult::F32(dw) };
                Ok(matmul_bf16(self, 1, dy, x, None, dw)?)
            });
        }
        let (x, dy) = (operand(OP, self, precision, x)?, operand(OP, self, precision, grad)?);
        dispatch!(OP, grad.dtype(), T => {
            let dy = Matrix::batched(dy.slice::<T>()?, outputs, rows, true);
            let x = Matrix::batched(x.slice::<T>()?, rows, inputs, false);
            with_slice_mut::<T, _>(OP, to.array.host(OP)?, |dw| {
                Ok(matmul_batched(self, 1, dy, x, MatrixMut::batched(dw, outputs, inputs), to.add)?)
            })
        })
    }

    fn linear_backward_bias(&self, [rows, _, outputs]: [usize; 3], dy: &Array) -> Result<Array> {
        const OP: &str = "linear";
        let dy = dy.host(OP)?;
        let read = Contiguous::by(OP, self, dy)?;
        dispatch!(OP, dy.dtype(), T => {
            let mut sums = unwritten::<T>(outputs);
            sum_columns(self, [rows, outputs], read.slice::<T>()?, &mut sums)?;
            Ok(tensor_from(sums, Shape::from(outputs))?.into())
        })
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        Ok(softmax(self, x.host("softmax")?, dtype)?.into())
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "softmax";
        Ok(softmax_backward(self, y.host(OP)?, dy.host(OP)?)?.into())
    }
}

/// Computes `[batch, m, n]` products of bf16 numbers, and adds the bias to every row.
fn multiply_bf16(
    context: &Context,
    [batch, m, n]: [usize; 3],
    [a, b]: [RoundedFactor<'_>; 2],
    bias: Option<&[f32]>,
    (shape, dtype): (&Shape, DType),
) -> Result<Array> {
    if dtype == DType::BF16 {
        let mut out = unwritten::<bf16>(batch * m * n);
        let to = RoundedResult::Bf16(MatrixMut::batched(&mut out, m, n));
        matmul_bf16(context, batch, a, b, bias, to)?;
        return Ok(Tensor::from_vec(out, shape.clone(), &Device::Cpu)?.into());
    }
    let mut out = unwritten::<f32>(batch * m * n);
    let to = RoundedResult::F32(MatrixMut::batched(&mut out, m, n));
    matmul_bf16(context, batch, a, b, bias, to)?;
    Ok(stored(context, out, shape.clone(), dtype)?.into())
}

/// Computes a linear layer of one row with a weight of bf16.
fn linear_row_bf16(context: &Context, of: LinearProduct<'_>) -> Result<Array> {
    const OP: &str = "linear";
    let LinearProduct { sizes: [_, inputs, outputs], x, weight, bias, shape, precision, dtype } = of;
    let (x, w) = (x.host(OP)?, weight.array.host(OP)?);
    let x = operand(OP, context, precision, x)?;
    let mut y = unwritten::<f32>(outputs);
    with_bf16_slice(OP, w, |w| {
        let w = Matrix::batched(w, inputs, outputs, weight.transposed);
        Ok(multiply_row_bf16(context, x.slice::<f32>()?, w, &mut y)?)
    })?;
    if let Some(bias) = bias {
        let bias = Contiguous::by(OP, context, bias.host(OP)?)?;
        y.iter_mut().zip(bias.slice::<f32>()?).for_each(|(y, bias)| *y += *bias);
    }
    Ok(stored(context, y, shape.clone(), dtype)?.into())
}

fn softmax(context: &Context, x: &Tensor, dtype: DType) -> Result<Tensor> {
    const OP: &str = "softmax";
    let read = Contiguous::by(OP, context, x)?;
    let width = x.dims().last().copied().unwrap_or(1);
    dispatch!(OP, x.dtype(), T => {
        let from = read.slice::<T>()?;
        let mut out = unwritten::<T>(from.len());
        softmax_rows_forward(context, from.len() / width.max(1), width, from, &mut out)?;
        stored(context, out, x.shape().clone(), dtype)
    })
}

fn softmax_backward(context: &Context, y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    const OP: &str = "softmax";
    let (y_read, grad_read) = (Contiguous::by(OP, context, y)?, Contiguous::by(OP, context, grad)?);
    let width = y.dims().last().copied().unwrap_or(1);
    dispatch!(OP, y.dtype(), T => {
        let (y_values, grad_values) = (y_read.slice::<T>()?, grad_read.slice::<T>()?);
        let mut out = unwritten::<T>(y_values.len());
        softmax_rows_backward(context, y_values.len() / width.max(1), width, y_values, grad_values, &mut out)?;
        tensor_from(out, y.shape().clone())
    })
}
