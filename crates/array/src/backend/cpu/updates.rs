//! Optimizer steps with the CPU kernels.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};
use phalanx_kernels::{
    ExactSquares, adam_step, clip_factor, ema_step, lion_step, loss_scale_step, scale, sgd_step,
    sum_of_squares,
};

use crate::backend::{
    AdamOptions, Array, AverageUpdate, EmaOptions, LOSS_SCALE_STATE, LionOptions, LossScaleOutcome,
    LossScaleStep, ParamUpdate, ScaledStep, SgdOptions, Updates,
};
use crate::storage::{Contiguous, copy_in_place, dispatch, tensor_from, with_slice_mut};
use crate::{ArrayError, Context, Result};

/// Reads a scalar of f64.
pub(super) fn scalar(op: &'static str, array: &Array) -> Result<f64> {
    Ok(array.host(op)?.to_scalar::<f64>()?)
}

/// Returns true unless the step is skipped.
pub(super) fn counts(op: &'static str, scaled: Option<&ScaledStep>) -> Result<bool> {
    scaled.map_or(Ok(true), |scaled| Ok(scaled.left_out.host(op)?.to_scalar::<u32>()? == 0))
}

/// Returns the number of steps skipped before a step that counts.
pub(super) fn left_out(op: &'static str, scaled: Option<&ScaledStep>) -> Result<u64> {
    scaled.map_or(Ok(0), |scaled| Ok(scalar(op, &scaled.all_left_out)? as u64))
}

/// Returns the unscaled gradients of a step.
pub(super) fn unscaled<'a>(
    context: &Context,
    op: &'static str,
    grads: &'a Array,
    scaled: Option<&ScaledStep>,
) -> Result<Cow<'a, Tensor>> {
    let Some(scaled) = scaled else { return Ok(Cow::Borrowed(grads.host(op)?)) };
    let own = grads.duplicate()?;
    context.scale_by(&own, &scaled.factor)?;
    Ok(Cow::Owned(own.tensor()?))
}

impl Updates for Context {
    fn sgd_step(&self, options: SgdOptions, of: ParamUpdate<'_>, buffer: Option<&Array>) -> Result<()> {
        let ParamUpdate { weights, grads, scaled } = of;
        const OP: &str = "sgd";
        if !counts(OP, scaled)? {
            return Ok(());
        }
        let grads = unscaled(self, OP, grads, scaled)?;
        let grads = Contiguous::locked(OP, &grads)?;
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
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
    ) -> Result<()> {
        let ParamUpdate { weights, grads, scaled } = of;
        const OP: &str = "adam";
        if !counts(OP, scaled)? {
            return Ok(());
        }
        let options = AdamOptions { step: options.step.saturating_sub(left_out(OP, scaled)?), ..options };
        let grads = unscaled(self, OP, grads, scaled)?;
        let grads = Contiguous::locked(OP, &grads)?;
        dispatch!(OP, weights.dtype(), T => with_slice_mut::<T, _>(OP, weights.host(OP)?, |weights| {
            with_slice_mut::<T, _>(OP, first.host(OP)?, |first| {
                with_slice_mut::<T, _>(OP, second.host(OP)?, |second| {
                    Ok(adam_step(self, options, weights, grads.slice::<T>()?, first, second)?)
                })
            })
        }))
    }

    fn lion_step(&self, options: LionOptions, of: ParamUpdate<'_>, moment: &Array) -> Result<()> {
        let ParamUpdate { weights, grads, scaled } = of;
        const OP: &str = "lion";
        if !counts(OP, scaled)? {
            return Ok(());
        }
        let grads = unscaled(self, OP, grads, scaled)?;
        let grads = Contiguous::locked(OP, &grads)?;
        dispatch!(OP, weights.dtype(), T => with_slice_mut::<T, _>(OP, weights.host(OP)?, |weights| {
            with_slice_mut::<T, _>(OP, moment.host(OP)?, |moment| {
                Ok(lion_step(self, options, weights, grads.slice::<T>()?, moment)?)
            })
        }))
    }

    fn ema_step(&self, options: EmaOptions, of: AverageUpdate<'_>) -> Result<()> {
        let AverageUpdate { average, weights, scaled } = of;
        const OP: &str = "ema";
        if !counts(OP, scaled)? {
            return Ok(());
        }
        let options =
            EmaOptions { updates: options.updates.saturating_sub(left_out(OP, scaled)?), ..options };
        if scaled.is_some() && options.updates == 0 {
            return copy_in_place(average.host(OP)?, weights.host(OP)?);
        }
        let weights = Contiguous::locked(OP, weights.host(OP)?)?;
        dispatch!(OP, average.dtype(), T => with_slice_mut::<T, _>(OP, average.host(OP)?, |average| {
            Ok(ema_step(self, options.keep(), average, weights.slice::<T>()?)?)
        }))
    }

    fn sum_of_squares(&self, x: &Array) -> Result<Array> {
        const OP: &str = "gradient norm";
        let read = Contiguous::locked(OP, x.host(OP)?)?;
        let total = dispatch!(OP, x.dtype(), T => {
            Ok::<_, ArrayError>(sum_of_squares(self, read.slice::<T>()?))
        })?;
        Ok(tensor_from(vec![total], ())?.into())
    }

    fn exact_squares(&self, x: &Array) -> Result<Array> {
        const OP: &str = "exact gradient norm";
        if x.dtype() != DType::F32 {
            return Err(ArrayError::dtype(OP, x.dtype()));
        }
        let read = Contiguous::locked(OP, x.host(OP)?)?;
        let mut squares = ExactSquares::default();
        squares.add(self, read.slice::<f32>()?);
        Ok(tensor_from(squares.digits().to_vec(), ExactSquares::DIGITS)?.into())
    }

    fn exact_squares_value(&self, digits: &Array) -> Result<Array> {
        const OP: &str = "exact gradient norm";
        let read = Contiguous::locked(OP, digits.host(OP)?)?;
        let digits = read.slice::<f64>()?;
        let problem = || format!("{} digits; expected {}", digits.len(), ExactSquares::DIGITS);
        let digits: &[f64; ExactSquares::DIGITS] =
            digits.try_into().map_err(|_| ArrayError::shape(OP, problem()))?;
        Ok(tensor_from(vec![ExactSquares::from_digits(digits).value()], ())?.into())
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
        Ok(tensor_from(vec![clip_factor(norm, max_norm)], ())?.into())
    }

    fn not_finite(&self, number: &Array) -> Result<Array> {
        let finite = scalar("not_finite", number)?.is_finite();
        Ok(tensor_from(vec![f64::from(u8::from(!finite))], ())?.into())
    }

    fn loss_scale_step(&self, of: LossScaleStep<'_>) -> Result<LossScaleOutcome> {
        let LossScaleStep { options, squares, not_finite, state } = of;
        const OP: &str = "loss_scale_step";
        let found = (scalar(OP, squares)?, scalar(OP, not_finite)? != 0.0);
        with_slice_mut::<f64, _>(OP, state.host(OP)?, |state| {
            let problem = format!("a state of {} numbers; expected {LOSS_SCALE_STATE}", state.len());
            let state: &mut [f64; LOSS_SCALE_STATE] =
                state.try_into().map_err(|_| ArrayError::shape(OP, problem))?;
            let scale = state[0];
            let step = loss_scale_step(options, found, state);
            let left_out = u8::from(step.left_out);
            let report = [&[scale, f64::from(left_out), step.norm], &state[..]].concat();
            let len = report.len();
            Ok(LossScaleOutcome {
                factor: tensor_from(vec![step.factor], ())?.into(),
                left_out: Tensor::new(u32::from(left_out), &Device::Cpu)?.into(),
                report: tensor_from(report, len)?.into(),
            })
        })
    }
}
