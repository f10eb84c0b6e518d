//! Steps of optimizers, by the kernels.

use phalanx_cuda::kernels::{self, StepInputs};

use super::Cuda;
use crate::Result;
use crate::backend::{AdamOptions, Array, SgdOptions, Updates};

impl Updates for Cuda {
    fn sgd_step(
        &self,
        options: SgdOptions,
        weights: &Array,
        grads: &Array,
        buffer: Option<&Array>,
    ) -> Result<()> {
        const OP: &str = "sgd";
        let step = StepInputs::new(self.slice(OP, weights)?, self.slice(OP, grads)?);
        Ok(kernels::sgd_step(self.gpu(), options, step, self.slice_if(OP, buffer)?)?)
    }

    fn adam_step(
        &self,
        options: AdamOptions,
        weights: &Array,
        grads: &Array,
        [first, second]: [&Array; 2],
    ) -> Result<()> {
        const OP: &str = "adam";
        let step = StepInputs::new(self.slice(OP, weights)?, self.slice(OP, grads)?);
        let moments = [self.slice(OP, first)?, self.slice(OP, second)?];
        Ok(kernels::adam_step(self.gpu(), options, step, moments)?)
    }

    fn ema_step(&self, decay: f64, average: &Array, weights: &Array) -> Result<()> {
        const OP: &str = "ema";
        Ok(kernels::ema_step(self.gpu(), decay, self.slice(OP, average)?, self.slice(OP, weights)?)?)
    }

    fn sum_of_squares(&self, x: &Array) -> Result<Array> {
        Ok(self.array(kernels::sum_of_squares(self.gpu(), self.slice("gradient norm", x)?)?, ()))
    }

    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()> {
        const OP: &str = "scale";
        Ok(kernels::scale_by(self.gpu(), self.slice(OP, to)?, self.slice(OP, factor)?)?)
    }

    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array> {
        Ok(self.array(kernels::clip_factor(self.gpu(), self.slice("clip", sum_of_squares)?, max_norm)?, ()))
    }
}
