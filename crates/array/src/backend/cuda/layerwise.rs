//! Steps of LAMB with the GPU kernels.

use phalanx_cuda::kernels;

use super::Cuda;
use crate::Result;
use crate::backend::{Array, LambOptions, LayerwiseUpdates, ParamUpdate};

const OP: &str = "lamb";

impl LayerwiseUpdates for Cuda {
    fn lamb_direction(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
    ) -> Result<Array> {
        let (count, step) = (of.weights.elem_count(), self.step_inputs(OP, of)?);
        let moments = [self.slice(OP, first)?, self.slice(OP, second)?];
        Ok(self.array(kernels::lamb_direction(self.gpu(), options, step, moments)?, count))
    }

    fn lamb_step(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
        squares: Option<[&Array; 2]>,
    ) -> Result<()> {
        let step = self.step_inputs(OP, of)?;
        let moments = [self.slice(OP, first)?, self.slice(OP, second)?];
        let squares = match squares {
            Some([weights, direction]) => Some([self.slice(OP, weights)?, self.slice(OP, direction)?]),
            None => None,
        };
        Ok(kernels::lamb_step(self.gpu(), options, step, moments, squares)?)
    }
}
