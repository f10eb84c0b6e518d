//! Gated linear units with the CPU kernels.

use std::ops::Range;

use candle_core::{DType, Shape};
use phalanx_kernels::{SwigluBackward, geglu_backward, geglu_forward, swiglu_backward, swiglu_forward};

use crate::backend::{Array, GatedUnits};
use crate::storage::{Output, RowKernel, Scalar, by_rows, wide};
use crate::{Context, Result};

/// Of rows of this many values and as many gates.
struct Geglu(usize);

impl RowKernel<1, 1> for Geglu {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [x]: [&[T]; 1],
        [y]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(geglu_forward(context, self.0, x, y)?)
    }
}

impl RowKernel<2, 1> for Geglu {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [x, dy]: [&[T]; 2],
        [dx]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(geglu_backward(context, self.0, x, dy, dx)?)
    }
}

struct Swiglu;

impl RowKernel<2, 1> for Swiglu {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [gate, value]: [&[T]; 2],
        [y]: [&mut [T]; 1],
    ) -> Result<()> {
        Ok(swiglu_forward(context, gate, value, y)?)
    }
}

impl RowKernel<3, 2> for Swiglu {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        _: Range<usize>,
        [gate, value, dy]: [&[T]; 3],
        grads: [&mut [T]; 2],
    ) -> Result<()> {
        Ok(swiglu_backward(context, SwigluBackward { gate, value, dy }, grads)?)
    }
}

/// A result of this shape.
fn output(shape: &Shape, dtype: DType) -> Output {
    Output { shape: shape.clone(), dtype }
}

impl GatedUnits for Context {
    fn geglu(&self, x: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let x = x.host(OP)?;
        let mut dims = x.dims().to_vec();
        let width = dims.last_mut().map_or(0, |last| {
            *last /= 2;
            *last
        });
        let rows = x.elem_count().checked_div(2 * width).unwrap_or(0);
        let made = [output(&Shape::from(dims), x.dtype())];
        let [y] = by_rows(OP, self, rows, [x], made, &Geglu(width))?;
        Ok(y.into())
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let (x, dy) = (x.host(OP)?, dy.host(OP)?);
        let width = dy.dims().last().copied().unwrap_or(0);
        let rows = dy.elem_count().checked_div(width).unwrap_or(0);
        let made = [output(x.shape(), wide(dy.dtype()))];
        let [dx] = by_rows(OP, self, rows, [x, dy], made, &Geglu(width))?;
        Ok(dx.into())
    }

    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array> {
        const OP: &str = "swiglu";
        let (gate, value) = (gate.host(OP)?, value.host(OP)?);
        let made = [output(gate.shape(), gate.dtype())];
        let [y] = by_rows(OP, self, gate.elem_count(), [gate, value], made, &Swiglu)?;
        Ok(y.into())
    }

    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]> {
        const OP: &str = "swiglu";
        let (gate, value, dy) = (gate.host(OP)?, value.host(OP)?, dy.host(OP)?);
        let made = [(); 2].map(|()| output(gate.shape(), wide(gate.dtype())));
        let grads = by_rows(OP, self, gate.elem_count(), [gate, value, dy], made, &Swiglu)?;
        Ok(grads.map(Array::from))
    }
}
