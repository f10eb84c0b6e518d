//! Elementwise functions and sums with the GPU kernels.

use candle_core::{DType, Shape};
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::backend::{Array, BinaryOp, Elementwise, UnaryOp};
use crate::storage::is_half;
use crate::{ArrayError, Result};

/// The result type of two operands. For 16 bits with f32 it is the 16-bit type, because that operand is an activation.
fn met(op: &'static str, a: DType, b: DType) -> Result<DType> {
    let low = [a, b].into_iter().find(|dtype| is_half(*dtype));
    let fits = match low {
        Some(low) => [a, b].iter().all(|dtype| *dtype == low || *dtype == DType::F32),
        None => a == b,
    };
    if fits {
        return Ok(low.unwrap_or(a));
    }
    Err(ArrayError::shape(op, format!("element types {a:?} and {b:?} do not match")))
}

impl Elementwise for Cuda {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        let name = op.name();
        let dtype = element_type(name, met(name, a.dtype(), b.dtype())?)?;
        let shape = a.shape().broadcast_shape_binary_op(b.shape(), name)?;
        let images = a.rank() == 4 && b.rank() == 4;
        if images && (self.is_last(name, a)? || self.is_last(name, b)?) {
            let turned = |array: &Array| [0, 2, 3, 1].map(|at| array.dims()[at]);
            let (left, right) = ((self.last(name, a)?, turned(a)), (self.last(name, b)?, turned(b)));
            let (left, right) = ((&left.0, &left.1[..]), (&right.0, &right.1[..]));
            return Ok(self.array_last(kernels::binary(self.gpu(), op, left, right, dtype)?, shape));
        }
        let (left, right) = ((self.slice(name, a)?, a.dims()), (self.slice(name, b)?, b.dims()));
        Ok(self.array(kernels::binary(self.gpu(), op, left, right, dtype)?, shape))
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        const OP: &str = "mul";
        let (grad, other) = (self.open(OP, grad)?, self.open(OP, other)?);
        let (grad, other) = ((grad.slice()?, grad.dims()), (other.slice()?, other.dims()));
        Ok(self.array(kernels::mul_backward(self.gpu(), grad, other, shape.dims())?, shape.clone()))
    }

    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array> {
        const OP: &str = "affine";
        let from = self.open(OP, x)?.physical().0;
        self.array_like(OP, x, kernels::affine(self.gpu(), from, factor, addend)?)
    }

    fn neg(&self, x: &Array) -> Result<Array> {
        let from = self.open("neg", x)?.physical().0;
        self.array_like("neg", x, kernels::neg(self.gpu(), from)?)
    }

    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array> {
        let from = self.open("unary", x)?.physical().0;
        self.array_like("unary", x, kernels::unary(self.gpu(), op, from)?)
    }

    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "unary";
        if self.is_last(OP, dy)? || self.is_last(OP, x)? || self.is_last(OP, y)? {
            let (x, y, grad) = (self.last(OP, x)?, self.last(OP, y)?, self.last(OP, dy)?);
            let dx = kernels::unary_backward(self.gpu(), op, &x, &y, &grad)?;
            return Ok(self.array_last(dx, dy.shape().clone()));
        }
        let (x, y, grad) = (self.slice(OP, x)?, self.slice(OP, y)?, self.slice(OP, dy)?);
        Ok(self.array(kernels::unary_backward(self.gpu(), op, x, y, grad)?, dy.shape().clone()))
    }

    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array> {
        Ok(self.array(kernels::sum_all(self.gpu(), self.slice("sum", x)?, factor)?, ()))
    }

    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array> {
        const OP: &str = "sum_over";
        let x = self.open(OP, x)?;
        let Some(length) = x.dims().get(dim).copied() else {
            return Err(ArrayError::shape(OP, format!("there is no dimension {dim} in {:?}", x.dims())));
        };
        let (outer, inner) = (x.dims()[..dim].iter().product(), x.dims()[dim + 1..].iter().product());
        let sums = kernels::sum_over(self.gpu(), x.slice()?, [outer, length, inner], x.slice()?.dtype())?;
        let mut dims = x.dims().to_vec();
        dims.remove(dim);
        Ok(self.array(sums, dims))
    }

    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array> {
        let grad = self.open("sum_to_shape", grad)?;
        let sums = kernels::sum_to_shape(self.gpu(), grad.slice()?, grad.dims(), shape.dims())?;
        Ok(self.array(sums, shape.clone()))
    }
}
