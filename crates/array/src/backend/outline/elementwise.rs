//! Elementwise functions and sums without numbers.

use candle_core::Shape;

use super::{Outlines, expect_equal};
use crate::backend::{Array, BinaryOp, Elementwise, UnaryOp};
use crate::storage::{met, wide};
use crate::{ArrayError, Result};

impl Elementwise for Outlines {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        let name = op.name();
        let dtype = met(name, a.dtype(), b.dtype())?;
        Ok(self.array(a.shape().broadcast_shape_binary_op(b.shape(), name)?, dtype))
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        grad.shape().broadcast_shape_binary_op(other.shape(), "mul")?;
        Ok(self.array(shape.clone(), wide(grad.dtype())))
    }

    fn affine(&self, x: &Array, _: f64, _: f64) -> Result<Array> {
        Ok(self.like(x, x.dtype()))
    }

    fn neg(&self, x: &Array) -> Result<Array> {
        Ok(self.like(x, x.dtype()))
    }

    fn unary(&self, _: UnaryOp, x: &Array) -> Result<Array> {
        Ok(self.like(x, x.dtype()))
    }

    fn unary_backward(&self, _: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        expect_equal("unary", dy, &[x, y])?;
        Ok(self.like(dy, wide(dy.dtype())))
    }

    fn sum_all(&self, x: &Array, _: f64) -> Result<Array> {
        Ok(self.array((), wide(x.dtype())))
    }

    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array> {
        let mut dims = x.dims().to_vec();
        if dim >= dims.len() {
            return Err(ArrayError::shape("sum_over", format!("no dimension {dim} in {dims:?}")));
        }
        dims.remove(dim);
        Ok(self.array(dims, x.dtype()))
    }

    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array> {
        if grad.shape() == shape {
            return Ok(grad.clone());
        }
        match shape.broadcast_shape_binary_op(grad.shape(), "sum_to_shape")? == *grad.shape() {
            true => Ok(self.array(shape.clone(), wide(grad.dtype()))),
            false => Err(ArrayError::unequal("sum_to_shape", grad.shape(), shape)),
        }
    }
}
