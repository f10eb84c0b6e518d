//! Lion.

use candle_core::Tensor;

use super::offload::{BucketUpdate, each_owned};
use super::{Optimizer, OptimizerState, StateLocation};
use crate::backend::{LionOptions, ParamUpdate, ScaledStep};
use crate::store::{OwnedGroup, ParamBucket};
use crate::{Context, Result};

/// Lion (Chen et al. 2023): steps of equal size along the sign of an interpolated momentum, with decoupled weight decay.
///
/// It has half of Adam's state. Its authors use a learning rate 3 to 10 times smaller than AdamW's, and a weight decay
/// larger by the same factor.
#[derive(Debug)]
pub struct Lion {
    betas: (f64, f64),
    weight_decay: f64,
    steps: u64,
    /// The number of skipped steps among these.
    left_out: u64,
    moment: OptimizerState,
}

impl Lion {
    /// Makes Lion; the paper's decay rates are 0.9 and 0.99.
    pub fn new(betas: (f64, f64), weight_decay: f64) -> Self {
        Self { betas, weight_decay, steps: 0, left_out: 0, moment: OptimizerState::new("exp_avg") }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(mut self, at: StateLocation) -> Self {
        self.moment = self.moment.kept_at(at);
        self
    }
}

impl Optimizer for Lion {
    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let &mut Self { betas, weight_decay, .. } = self;
        let options = |group: &OwnedGroup| LionOptions {
            lr: lr * group.rate,
            betas,
            weight_decay: if group.decay { weight_decay } else { 0.0 },
        };
        let mut kinds = [&mut self.moment];
        each_owned(params, &mut kinds, context, |BucketUpdate { param, values, grads, states, backend }| {
            for group in param.owned_groups() {
                let at = group.range.clone();
                let (weights, grads) = (values.narrow(at.clone())?, grads.narrow(at.clone())?);
                let moment = states[0].narrow(at)?;
                let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                backend.lion_step(options(&group), of, moment.array())?;
            }
            Ok(())
        })?;
        self.steps += 1;
        Ok(())
    }

    fn note_left_out(&mut self, steps: u64) {
        self.left_out = steps;
    }

    fn set_momentum(&mut self, momentum: f64) {
        self.betas.0 = momentum;
    }

    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.moment.reserve(params)
    }

    fn kinds(&self) -> Vec<&'static str> {
        vec![self.moment.kind()]
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps - self.left_out, self.moment.named(params)?))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out) = (steps, 0);
        self.moment.load(params, tensors).map(drop)
    }

    fn state_bytes(&self) -> usize {
        self.moment.bytes()
    }
}
