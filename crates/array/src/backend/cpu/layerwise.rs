//! Steps of LAMB with the CPU kernels.

use phalanx_kernels::{Float as _, lamb_direction, lamb_step, trust_ratio};

use super::updates::{counts, left_out, scalar, unscaled};
use crate::backend::{Array, LambOptions, LayerwiseUpdates, ParamUpdate, ScaledStep};
use crate::storage::{Contiguous, dispatch, tensor_from, with_slice_mut};
use crate::{Context, Result};

const OP: &str = "lamb";

/// Subtracts the skipped steps from the number of a step.
fn counted(options: LambOptions, scaled: Option<&ScaledStep>) -> Result<LambOptions> {
    Ok(LambOptions { step: options.step.saturating_sub(left_out(OP, scaled)?), ..options })
}

impl LayerwiseUpdates for Context {
    fn lamb_direction(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
    ) -> Result<Array> {
        let ParamUpdate { weights, grads, scaled } = of;
        let options = counted(options, scaled)?;
        let grads = unscaled(self, OP, grads, scaled)?;
        let grads = Contiguous::locked(OP, &grads)?;
        let (first, second) =
            (Contiguous::locked(OP, first.host(OP)?)?, Contiguous::locked(OP, second.host(OP)?)?);
        let values = Contiguous::locked(OP, weights.host(OP)?)?;
        dispatch!(OP, weights.dtype(), T => {
            let values = values.slice::<T>()?;
            let mut direction = vec![T::ZERO; values.len()];
            let moments = [first.slice::<T>()?, second.slice::<T>()?];
            lamb_direction(self, options, values, grads.slice::<T>()?, moments, &mut direction)?;
            let len = direction.len();
            Ok(tensor_from(direction, len)?.into())
        })
    }

    fn lamb_step(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        [first, second]: [&Array; 2],
        squares: Option<[&Array; 2]>,
    ) -> Result<()> {
        let ParamUpdate { weights, grads, scaled } = of;
        if !counts(OP, scaled)? {
            return Ok(());
        }
        let options = counted(options, scaled)?;
        let ratio = match squares {
            Some([weights, direction]) => trust_ratio(scalar(OP, weights)?, scalar(OP, direction)?),
            None => 1.0,
        };
        let grads = unscaled(self, OP, grads, scaled)?;
        let grads = Contiguous::locked(OP, &grads)?;
        dispatch!(OP, weights.dtype(), T => with_slice_mut::<T, _>(OP, weights.host(OP)?, |weights| {
            with_slice_mut::<T, _>(OP, first.host(OP)?, |first| {
                with_slice_mut::<T, _>(OP, second.host(OP)?, |second| {
                    Ok(lamb_step(self, options, ratio, weights, grads.slice::<T>()?, [first, second])?)
                })
            })
        }))
    }
}
