//! Gated linear units with the CPU kernels.

use candle_core::Shape;
use phalanx_kernels::{SwigluBackward, geglu_backward, geglu_forward, swiglu_backward, swiglu_forward};

use crate::backend::{Array, GatedUnits};
use crate::storage::{Contiguous, dispatch, stored, tensor_from, unwritten};
use crate::{Context, Result};

impl GatedUnits for Context {
    fn geglu(&self, x: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        let mut dims = x.dims().to_vec();
        let width = dims.last_mut().map_or(0, |last| {
            *last /= 2;
            *last
        });
        dispatch!(OP, x.dtype(), T => {
            let values = read.slice::<T>()?;
            let mut y = unwritten::<T>(values.len() / 2);
            geglu_forward(self, width, values, &mut y)?;
            Ok(stored(self, y, Shape::from(dims), x.dtype())?.into())
        })
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let (x_t, grad) = (x.host(OP)?, dy.host(OP)?);
        let (x, dy) = (Contiguous::by(OP, self, x_t)?, Contiguous::by(OP, self, grad)?);
        let width = grad.dims().last().copied().unwrap_or(0);
        dispatch!(OP, grad.dtype(), T => {
            let mut dx = unwritten::<T>(x_t.elem_count());
            geglu_backward(self, width, x.slice::<T>()?, dy.slice::<T>()?, &mut dx)?;
            Ok(tensor_from(dx, x_t.shape().clone())?.into())
        })
    }

    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array> {
        const OP: &str = "swiglu";
        let (of, value) = (gate.host(OP)?, value.host(OP)?);
        let (gate, value) = (Contiguous::by(OP, self, of)?, Contiguous::by(OP, self, value)?);
        dispatch!(OP, of.dtype(), T => {
            let mut y = unwritten::<T>(of.elem_count());
            swiglu_forward(self, gate.slice::<T>()?, value.slice::<T>()?, &mut y)?;
            Ok(stored(self, y, of.shape().clone(), of.dtype())?.into())
        })
    }

    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]> {
        const OP: &str = "swiglu";
        let of = gate.host(OP)?;
        let read = |array| Contiguous::by(OP, self, array);
        let (gate, value, dy) = (read(of)?, read(value.host(OP)?)?, read(dy.host(OP)?)?);
        dispatch!(OP, of.dtype(), T => {
            let (mut dgate, mut dvalue) = (unwritten::<T>(of.elem_count()), unwritten::<T>(of.elem_count()));
            let from = SwigluBackward { gate: gate.slice::<T>()?, value: value.slice()?, dy: dy.slice()? };
            swiglu_backward(self, from, [&mut dgate, &mut dvalue])?;
            let shape = of.shape();
            Ok([tensor_from(dgate, shape.clone())?.into(), tensor_from(dvalue, shape.clone())?.into()])
        })
    }
}
