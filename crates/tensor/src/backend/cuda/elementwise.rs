//! Elementwise functions and sums, by the kernels.

use candle_core::{DType, Shape};
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::backend::{Array, BinaryOp, Elementwise, UnaryOp};
use crate::storage::is_half;
use crate::{Result, TensorError};

/// The type of what two operands are combined to: where 16 bits meet f32 those of 16 bits, as it is an activation and stays one.
fn met(op: &'static str, a: DType, b: DType) -> Result<DType> {
    let low = [a, b].into_iter().find(|dtype| is_half(*dtype));
    let fits = match low {
        Some(low) => [a, b].iter().all(|dtype| *dtype == low || *dtype == DType::F32),
        None => a == b,
    };
    if fits {
        return Ok(low.unwrap_or(a));
    }
    Err(TensorError::shape(op, format!("element types {a:?} and {b:?} do not go together")))
}

impl Elementwise for Cuda {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        let name = op.name();
        let (left, right) = (self.open(name, a)?, self.open(name, b)?);
        let dtype = element_type(name, met(name, a.dtype(), b.dtype())?)?;
        let shape = a.shape().broadcast_shape_binary_op(b.shape(), name)?;
        let (left, right) = ((left.slice(), left.dims()), (right.slice(), right.dims()));
        Ok(self.array(kernels::binary(self.gpu(), op, left, right, dtype)?, shape))
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        const OP: &str = "mul";
        let (grad, other) = (self.open(OP, grad)?, self.open(OP, other)?);
        let (grad, other) = ((grad.slice(), grad.dims()), (other.slice(), other.dims()));
        Ok(self.array(kernels::mul_backward(self.gpu(), grad, other, shape.dims())?, shape.clone()))
    }

    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array> {
        let slice = kernels::affine(self.gpu(), self.slice("affine", x)?, factor, addend)?;
        Ok(self.array(slice, x.shape().clone()))
    }

    fn neg(&self, x: &Array) -> Result<Array> {
        Ok(self.array(kernels::neg(self.gpu(), self.slice("neg", x)?)?, x.shape().clone()))
    }

    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array> {
        Ok(self.array(kernels::unary(self.gpu(), op, self.slice("unary", x)?)?, x.shape().clone()))
    }

    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "unary";
        let (x, y, grad) = (self.slice(OP, x)?, self.slice(OP, y)?, self.slice(OP, dy)?);
        Ok(self.array(kernels::unary_backward(self.gpu(), op, x, y, grad)?, dy.shape().clone()))
    }

    fn geglu(&self, x: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let mut dims = x.dims().to_vec();
        let width = dims.last_mut().map_or(0, |last| {
            *last /= 2;
            *last
        });
        Ok(self.array(kernels::geglu(self.gpu(), self.slice(OP, x)?, width)?, dims))
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let width = dy.dims().last().copied().unwrap_or(0);
        let dx = kernels::geglu_backward(self.gpu(), self.slice(OP, x)?, self.slice(OP, dy)?, width)?;
        Ok(self.array(dx, x.shape().clone()))
    }

    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array> {
        Ok(self.array(kernels::sum_all(self.gpu(), self.slice("sum", x)?, factor)?, ()))
    }

    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array> {
        const OP: &str = "sum_over";
        let x = self.open(OP, x)?;
        let Some(length) = x.dims().get(dim).copied() else {
            return Err(TensorError::shape(OP, format!("there is no dimension {dim} in {:?}", x.dims())));
        };
        let (outer, inner) = (x.dims()[..dim].iter().product(), x.dims()[dim + 1..].iter().product());
        let sums = kernels::sum_over(self.gpu(), x.slice(), [outer, length, inner], x.slice().dtype())?;
        let mut dims = x.dims().to_vec();
        dims.remove(dim);
        Ok(self.array(sums, dims))
    }

    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array> {
        let grad = self.open("sum_to_shape", grad)?;
        let sums = kernels::sum_to_shape(self.gpu(), grad.slice(), grad.dims(), shape.dims())?;
        Ok(self.array(sums, shape.clone()))
    }
}
