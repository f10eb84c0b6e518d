//! Optimizer steps with the GPU kernels.

use phalanx_cuda::Slice;
use phalanx_cuda::kernels::{self, EmaInputs, StepInputs};

use super::Cuda;
use crate::Result;
use crate::backend::{
    AdamOptions, Array, AverageUpdate, EmaOptions, LionOptions, LossScaleOutcome, LossScaleStep, ParamUpdate,
    ScaledStep, SgdOptions, Updates,
};

impl Cuda {
    /// Returns the arrays of a step besides its moments.
    pub(super) fn step_inputs<'a>(&self, op: &'static str, of: ParamUpdate<'a>) -> Result<StepInputs<'a>> {
        let ParamUpdate { weights, grads, scaled } = of;
        let step = StepInputs::new(self.slice(op, weights)?, self.slice(op, grads)?);
        let Some(scaled) = scaled else { return Ok(step) };
        let [skip, left_out] = self.counted(op, scaled)?;
        let factor = Some(self.slice(op, &scaled.factor)?);
        Ok(StepInputs { factor, skip: Some(skip), left_out: Some(left_out), ..step })
    }

    /// Returns the skip flag and the number of skipped steps.
    fn counted<'a>(&self, op: &'static str, scaled: &'a ScaledStep) -> Result<[&'a Slice; 2]> {
        Ok([self.slice(op, &scaled.left_out)?, self.slice(op, &scaled.all_left_out)?])
    }
}

impl Updates for Cuda {
    fn sgd_step(&self, options: SgdOptions, of: ParamUpdate<'_>, buffer: Option<&Array>) -> Result<()> {
        const OP: &str = "sgd";
        let step = self.step_inputs(OP, of)?;
        Ok(kernels::sgd_step(self.gpu(), options, step, self.slice_if(OP, buffer)?)?)
    }

    fn adam_step(
        &self,
        options: AdamOptions,
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
    ) -> Result<()> {
        const OP: &str = "adam";
        let step = self.step_inputs(OP, of)?;
        let moments = [self.slice(OP, first)?, self.slice(OP, second)?];
        Ok(kernels::adam_step(self.gpu(), options, step, moments)?)
    }

    fn lion_step(&self, options: LionOptions, of: ParamUpdate<'_>, moment: &Array) -> Result<()> {
        const OP: &str = "lion";
        let step = self.step_inputs(OP, of)?;
        Ok(kernels::lion_step(self.gpu(), options, step, self.slice(OP, moment)?)?)
    }

    fn ema_step(&self, options: EmaOptions, of: AverageUpdate<'_>) -> Result<()> {
        let AverageUpdate { average, weights, scaled } = of;
        const OP: &str = "ema";
        let mut step = EmaInputs::new(self.slice(OP, average)?, self.slice(OP, weights)?);
        if let Some(scaled) = scaled {
            let [skip, left_out] = self.counted(OP, scaled)?;
            (step.skip, step.left_out) = (Some(skip), Some(left_out));
        }
        Ok(kernels::ema_step(self.gpu(), options, step)?)
    }

    fn sum_of_squares(&self, x: &Array) -> Result<Array> {
        Ok(self.array(kernels::sum_of_squares(self.gpu(), self.slice("gradient norm", x)?)?, ()))
    }

    fn exact_squares(&self, x: &Array) -> Result<Array> {
        let digits = kernels::exact_squares(self.gpu(), self.slice("exact gradient norm", x)?)?;
        let count = digits.len();
        Ok(self.array(digits, count))
    }

    fn exact_squares_value(&self, digits: &Array) -> Result<Array> {
        let digits = self.slice("exact gradient norm", digits)?;
        Ok(self.array(kernels::exact_squares_value(self.gpu(), digits)?, ()))
    }

    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()> {
        const OP: &str = "scale";
        Ok(kernels::scale_by(self.gpu(), self.slice(OP, to)?, self.slice(OP, factor)?)?)
    }

    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array> {
        Ok(self.array(kernels::clip_factor(self.gpu(), self.slice("clip", sum_of_squares)?, max_norm)?, ()))
    }

    fn not_finite(&self, number: &Array) -> Result<Array> {
        Ok(self.array(kernels::not_finite(self.gpu(), self.slice("not_finite", number)?)?, ()))
    }

    fn loss_scale_step(&self, of: LossScaleStep<'_>) -> Result<LossScaleOutcome> {
        let LossScaleStep { options, squares, not_finite, state } = of;
        const OP: &str = "loss_scale_step";
        let found = (self.slice(OP, squares)?, self.slice(OP, not_finite)?);
        let step = kernels::loss_scale_step(self.gpu(), options, found, self.slice(OP, state)?)?;
        let numbers = step.report.len();
        Ok(LossScaleOutcome {
            factor: self.array(step.factor, ()),
            left_out: self.array(step.skip, ()),
            report: self.array(step.report, numbers),
        })
    }
}
