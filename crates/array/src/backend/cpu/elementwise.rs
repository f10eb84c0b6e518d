//! Elementwise functions and sums with the CPU kernels. candle does rare functions and broadcasts other than over
//! planes.

use std::ops::Range;

use candle_core::{Shape, Tensor};
use phalanx_kernels::{binary, sum_columns, sum_rows, unary_backward, unary_forward};

use crate::backend::{Array, BinaryOp, Elementwise, UnaryOp};
use crate::storage::{
    Contiguous, Output, RowKernel, Scalar, by_rows, cast, dispatch, is_half, meet, met, tensor_from,
    unwritten, wide,
};
use crate::{Context, Result};

/// Runs a candle function on a tensor in the type of the arithmetic and stores the result as the tensor's type.
fn single(
    context: &Context,
    x: &Tensor,
    compute: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
) -> Result<Array> {
    Ok(cast(context, &compute(&cast(context, x, wide(x.dtype()))?)?, x.dtype())?.into())
}

/// Combines two tensors of one element type.
fn combined(context: &Context, op: BinaryOp, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !spans_planes(a.dims(), b.dims()) || a.dtype() != b.dtype() {
        return Ok(match op {
            BinaryOp::Add => a.broadcast_add(b),
            BinaryOp::Sub => a.broadcast_sub(b),
            BinaryOp::Mul => a.broadcast_mul(b),
        }?);
    }
    let name = op.name();
    // The kernels read contiguous elements, and lock both tensors.
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let (x, y) = (Contiguous::by(name, context, &a)?, Contiguous::by(name, context, &b)?);
    dispatch!(name, a.dtype(), T => {
        let mut out = unwritten::<T>(a.elem_count());
        binary(context, op, x.slice::<T>()?, y.slice::<T>()?, &mut out)?;
        tensor_from(out, a.shape().clone())
    })
}

/// True if `part` is `of`, or has 1 in place of its last sizes.
fn spans_planes(of: &[usize], part: &[usize]) -> bool {
    let alike = of.iter().zip(part).take_while(|(of, part)| of == part).count();
    of.len() == part.len() && part[alike..].iter().all(|size| *size == 1) && !part.contains(&0)
}

fn sum_to_shape(context: &Context, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad.clone());
    }
    const OP: &str = "sum_to_shape";
    let kept = shape.elem_count();
    let leading = grad.dims().ends_with(shape.dims());
    if kept > 0 && (leading || spans_planes(grad.dims(), shape.dims())) {
        let grad = grad.contiguous()?;
        let read = Contiguous::by(OP, context, &grad)?;
        let times = grad.elem_count() / kept;
        return dispatch!(OP, grad.dtype(), T => {
            let mut sums = unwritten::<T>(kept);
            match leading {
                true => sum_columns(context, [times, kept], read.slice::<T>()?, &mut sums)?,
                false => sum_rows(context, [kept, times], read.slice::<T>()?, &mut sums)?,
            }
            tensor_from(sums, shape.clone())
        });
    }
    let grad = cast(context, grad, wide(grad.dtype()))?;
    let (dims, extra) = (shape.dims(), grad.rank() - shape.rank());
    let mut summed: Vec<usize> = (0..extra).collect();
    summed
        .extend((0..dims.len()).filter(|d| dims[*d] == 1 && grad.dims()[extra + d] != 1).map(|d| d + extra));
    let grad = if summed.is_empty() { grad.clone() } else { grad.contiguous()?.sum_keepdim(summed)? };
    Ok(grad.reshape(shape)?)
}

/// Combines pairs of elements.
struct Binary(BinaryOp);

impl RowKernel<2, 1> for Binary {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [a, b]: [&[T]; 2],
        [out]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(binary(context, self.0, a, b, out)?)
    }
}

/// Applies a function to each element.
struct Unary(UnaryOp);

impl RowKernel<1, 1> for Unary {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [x]: [&[T]; 1],
        [y]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(unary_forward(context, self.0, x, y)?)
    }
}

/// The gradient of a function of each element, by its input, its output and the output's gradient.
struct UnaryBackward(UnaryOp);

impl RowKernel<3, 1> for UnaryBackward {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [x, y, dy]: [&[T]; 3],
        [dx]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(unary_backward(context, self.0, x, y, dy, dx)?)
    }
}

impl Elementwise for Context {
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array> {
        let name = op.name();
        let (of_a, of_b) = (a.host(name)?, b.host(name)?);
        let dtype = met(name, of_a.dtype(), of_b.dtype())?;
        if of_a.dims() == of_b.dims() && is_half(dtype) {
            let (a, b) = (of_a.contiguous()?, of_b.contiguous()?);
            let output = Output { shape: a.shape().clone(), dtype };
            let [out] = by_rows(name, self, a.elem_count(), [&a, &b], [output], &Binary(op))?;
            return Ok(out.into());
        }
        let (a, b, dtype) = meet(self, name, of_a, of_b)?;
        Ok(cast(self, &combined(self, op, &a, &b)?, dtype)?.into())
    }

    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array> {
        const OP: &str = "mul";
        let (grad, other, _) = meet(self, OP, grad.host(OP)?, other.host(OP)?)?;
        Ok(sum_to_shape(self, &combined(self, BinaryOp::Mul, &grad, &other)?, shape)?.into())
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
        let output = Output { shape: x.shape().clone(), dtype: x.dtype() };
        let [y] = by_rows(OP, self, x.elem_count(), [x], [output], &Unary(op))?;
        Ok(y.into())
    }

    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "unary";
        let grad = dy.host(OP)?;
        let output = Output { shape: grad.shape().clone(), dtype: wide(grad.dtype()) };
        let inputs = [x.host(OP)?, y.host(OP)?, grad];
        let [dx] = by_rows(OP, self, grad.elem_count(), inputs, [output], &UnaryBackward(op))?;
        Ok(dx.into())
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
