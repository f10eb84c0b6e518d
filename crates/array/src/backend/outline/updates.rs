//! Optimizer steps without numbers.

use candle_core::DType;
use phalanx_kernels::ExactSquares;

use super::{Outlines, expect_equal};
use crate::Result;
use crate::backend::{
    AdamOptions, Array, AverageUpdate, EmaOptions, LOSS_SCALE_STATE, LionOptions, LossScaleOutcome,
    LossScaleStep, ParamUpdate, SgdOptions, Updates,
};

impl Updates for Outlines {
    fn sgd_step(&self, _: SgdOptions, of: ParamUpdate<'_>, _: Option<&Array>) -> Result<()> {
        expect_equal("sgd", of.weights, &[of.grads])
    }

    fn adam_step(&self, _: AdamOptions, of: ParamUpdate<'_>, moments: [&Array; 2]) -> Result<()> {
        expect_equal("adam", of.weights, &[of.grads, moments[0], moments[1]])
    }

    fn lion_step(&self, _: LionOptions, of: ParamUpdate<'_>, moment: &Array) -> Result<()> {
        expect_equal("lion", of.weights, &[of.grads, moment])
    }

    fn ema_step(&self, _: EmaOptions, of: AverageUpdate<'_>) -> Result<()> {
        expect_equal("ema", of.weights, &[of.average])
    }

    fn sum_of_squares(&self, _: &Array) -> Result<Array> {
        Ok(self.array((), DType::F64))
    }

    fn exact_squares(&self, _: &Array) -> Result<Array> {
        Ok(self.array(ExactSquares::DIGITS, DType::F64))
    }

    fn exact_squares_value(&self, _: &Array) -> Result<Array> {
        Ok(self.array((), DType::F64))
    }

    fn scale_by(&self, to: &Array, _: &Array) -> Result<()> {
        self.overwrite("scale", to)
    }

    fn clip_factor(&self, _: &Array, _: f64) -> Result<Array> {
        Ok(self.array((), DType::F64))
    }

    fn not_finite(&self, _: &Array) -> Result<Array> {
        Ok(self.array((), DType::F64))
    }

    fn loss_scale_step(&self, _: LossScaleStep<'_>) -> Result<LossScaleOutcome> {
        Ok(LossScaleOutcome {
            factor: self.array((), DType::F64),
            left_out: self.array((), DType::U32),
            report: self.array(3 + LOSS_SCALE_STATE, DType::F64),
        })
    }
}
