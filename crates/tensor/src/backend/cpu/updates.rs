//! Steps of optimizers, by the kernels.

use phalanx_kernels::{adam_step, ema_step, scale, sgd_step, sum_of_squares};

use crate::backend::{AdamOptions, Array, SgdOptions, Updates};
use crate::storage::{Contiguous, dispatch, tensor_from, with_slice_mut};
use crate::{Context, Result, TensorError};

/// A scalar of f64.
fn scalar(op: &'static str, array: &Array) -> Result<f64> {
    Ok(array.host(op)?.to_scalar::<f64>()?)
}

impl Updates for Context {
    fn sgd_step(
        &self,
        options: SgdOptions,
        weights: &Array,
        grads: &Array,
        buffer: Option<&Array>,
    ) -> Result<()> {
        const OP: &str = "sgd";
        let grads = Contiguous::locked(OP, grads.host(OP)?)?;
        dispatch!(OP, weights.dtype(), T => with_slice_mut::<T, _>(OP, weights.host(OP)?, |weights| {
            let grads = grads.slice::<T>()?;
            let Some(buffer) = buffer else {
                return Ok(sgd_step(self, options, weights, grads, &mut [])?);
            };
            with_slice_mut::<T, _>(OP, buffer.host(OP)?, |buffer| {
                Ok(sgd_step(self, options, weights, grads, buffer)?)
            })
        }))
    }

    fn adam_step(
        &self,
        options: AdamOptions,
        weights: &Array,
        grads: &Array,
        [first, second]: [&Array; 2],
    ) -> Result<()> {
        const OP: &str = "adam";
        let grads = Contiguous::locked(OP, grads.host(OP)?)?;
        dispatch!(OP, weights.dtype(), T => with_slice_mut::<T, _>(OP, weights.host(OP)?, |weights| {
            with_slice_mut::<T, _>(OP, first.host(OP)?, |first| {
                with_slice_mut::<T, _>(OP, second.host(OP)?, |second| {
                    Ok(adam_step(self, options, weights, grads.slice::<T>()?, first, second)?)
                })
            })
        }))
    }

    fn ema_step(&self, decay: f64, average: &Array, weights: &Array) -> Result<()> {
        const OP: &str = "ema";
        let weights = Contiguous::locked(OP, weights.host(OP)?)?;
        dispatch!(OP, average.dtype(), T => with_slice_mut::<T, _>(OP, average.host(OP)?, |average| {
            Ok(ema_step(self, decay, average, weights.slice::<T>()?)?)
        }))
    }

    fn sum_of_squares(&self, x: &Array) -> Result<Array> {
        const OP: &str = "gradient norm";
        let read = Contiguous::locked(OP, x.host(OP)?)?;
        let total = dispatch!(OP, x.dtype(), T => {
            Ok::<_, TensorError>(sum_of_squares(self, read.slice::<T>()?))
        })?;
        Ok(tensor_from(vec![total], ())?.into())
    }

    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()> {
        const OP: &str = "scale";
        let factor = scalar(OP, factor)?;
        if factor == 1.0 {
            return Ok(());
        }
        dispatch!(OP, to.dtype(), T => with_slice_mut::<T, _>(OP, to.host(OP)?, |values| {
            scale(self, factor, values);
            Ok(())
        }))
    }

    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array> {
        let norm = scalar("clip", sum_of_squares)?.sqrt();
        // The small number is PyTorch's, so that both clip alike.
        let factor = if norm.is_finite() && norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 };
        Ok(tensor_from(vec![factor], ())?.into())
    }
}
