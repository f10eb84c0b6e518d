//! Elementwise functions and sums: candle's, but for the functions of one argument.

use candle_core::{Shape, Tensor};
use phalanx_kernels::{unary_backward, unary_forward};

use crate::backend::{Array, BinaryOp, Elementwise, UnaryOp};
use crate::storage::{Contiguous, cast, dispatch, meet, stored, tensor_from, unwritten, wide};
use crate::{Context, Result};

/// What candle computes of a tensor, in the type that the tensor is stored in.
fn single(
    context: &Context,
    x: &Tensor,
    compute: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
) -> Result<Array> {
    Ok(cast(context, &compute(&cast(context, x, wide(x.dtype()))?)?, x.dtype())?.into())
}

fn sum_to_shape(context: &Context, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad.clone());
    }
    let grad = cast(context, grad, wide(grad.dtype()))?;
    let (dims, extra) = (shape.dims(), grad.rank() - shape.rank());
    let mut summed: Vec<usize> = (0..extra).collect();
    summed
        .extend((0..dims.len()).filter(|d| dims[*d] == 1 && grad.dims()[extra + d] != 1).map(|d| d + extra));
    let grad = if summed.is_empty() { grad.clone() } else { grad.contiguous()?.sum_keepdim(summed)? };
    Ok(grad.reshape(shape)?)
}

impl Elementwise for Context {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        let name = op.name();
        let (a, b, dtype) = meet(self, name, a.host(name)?, b.host(name)?)?;
        let result = match op {
            BinaryOp::Add => a.broadcast_add(&b),
            BinaryOp::Sub => a.broadcast_sub(&b),
            BinaryOp::Mul => a.broadcast_mul(&b),
        };
        Ok(cast(self, &result?, dtype)?.into())
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        const OP: &str = "mul";
        let (grad, other, _) = meet(self, OP, grad.host(OP)?, other.host(OP)?)?;
        Ok(sum_to_shape(self, &grad.broadcast_mul(&other)?, shape)?.into())
    }

    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array> {
        single(self, x.host("affine")?, |x| x.affine(factor, addend))
    }

    fn neg(&self, x: &Array) -> Result<Array> {
        Ok(x.host("neg")?.neg()?.into())
    }

    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array> {
        const OP: &str = "unary";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        dispatch!(OP, x.dtype(), T => {
            let values = read.slice::<T>()?;
            let mut y = unwritten::<T>(values.len());
            unary_forward(self, op, values, &mut y)?;
            Ok(stored(self, y, x.shape().clone(), x.dtype())?.into())
        })
    }

    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "unary";
        let grad = dy.host(OP)?;
        let (x, y, dy) = (
            Contiguous::by(OP, self, x.host(OP)?)?,
            Contiguous::by(OP, self, y.host(OP)?)?,
            Contiguous::by(OP, self, grad)?,
        );
        dispatch!(OP, grad.dtype(), T => {
            let dy = dy.slice::<T>()?;
            let mut dx = unwritten::<T>(dy.len());
            unary_backward(self, op, x.slice::<T>()?, y.slice::<T>()?, dy, &mut dx)?;
            Ok(tensor_from(dx, grad.shape().clone())?.into())
        })
    }

    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array> {
        let x = x.host("sum")?;
        Ok((cast(self, x, wide(x.dtype()))?.contiguous()?.sum_all()? * factor)?.into())
    }

    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array> {
        let x = x.host("sum_over")?;
        let sums = cast(self, x, wide(x.dtype()))?.contiguous()?.sum(dim)?;
        Ok(cast(self, &sums, x.dtype())?.into())
    }

    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array> {
        Ok(sum_to_shape(self, grad.host("sum_to_shape")?, shape)?.into())
    }
}
