//! Matrix products and softmax with the CPU kernels.

use candle_core::{DType, Shape, Tensor};
use phalanx_kernels::{
    Matrix, MatrixMut, linear_forward, matmul_batched, multiply_row_bf16, softmax_rows_backward,
    softmax_rows_forward, sum_columns,
};

use crate::backend::{Array, Destination, LinearProduct, LinearWeightGrad, MatrixProduct, Products};
use crate::storage::{
    Contiguous, dispatch, operand, stored, tensor_from, unwritten, with_bf16_slice, with_slice_mut,
};
use crate::{Context, Precision, Result};

impl Products for Context {
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array> {
        const OP: &str = "round";
        let of = x.host(OP)?;
        match operand(OP, self, precision, of)?.into_widened() {
            Some(values) => Ok(tensor_from(values, of.shape().clone())?.into()),
            None => Ok(x.clone()),
        }
    }

    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array> {
        let MatrixProduct { sizes: [batch, m, n, k], a, b, shape, precision, dtype } = of;
        const OP: &str = "matmul";
        let (a_t, b_t) = (a.array.host(OP)?, b.array.host(OP)?);
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
        let LinearProduct { sizes, x, weight, bias, shape, precision, dtype } = of;
        let (x, w) = (x.host(OP)?, weight.array.host(OP)?);
        if sizes[0] == 1 && w.dtype() == DType::BF16 && x.dtype() != DType::F64 {
            return linear_row_bf16(self, of);
        }
        let (x_read, w_read) = (operand(OP, self, precision, x)?, operand(OP, self, precision, w)?);
        let bias = bias.map(|bias| Contiguous::by(OP, self, bias.host(OP)?)).transpose()?;
        dispatch!(OP, x.dtype(), T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let x = x_read.slice::<T>()?;
            let w = Matrix::batched(w_read.slice::<T>()?, sizes[1], sizes[2], weight.transposed);
            let mut y = unwritten::<T>(sizes[0] * sizes[2]);
            linear_forward(self, sizes, x, w, bias, &mut y)?;
            Ok(stored(self, y, shape.clone(), dtype)?.into())
        })
    }

    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()> {
        let LinearWeightGrad { sizes: [rows, inputs, outputs], dy, x, precision } = of;
        const OP: &str = "linear";
        let (grad, x) = (dy.host(OP)?, x.host(OP)?);
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
