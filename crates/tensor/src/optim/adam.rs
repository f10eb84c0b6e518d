//! Adam and AdamW.

use candle_core::Tensor;

use super::offload::{BucketUpdate, each_owned};
use super::{Optimizer, OptimizerState, StateLocation};
use crate::backend::{AdamOptions, ParamUpdate, ScaledStep};
use crate::store::{FlatStorage, ParamBucket};
use crate::{Context, Result};

/// Adam (Kingma & Ba 2015) with weight decay added to the gradient as in `torch.optim.Adam`, or decoupled as in
/// `torch.optim.AdamW` (Loshchilov & Hutter 2019).
#[derive(Debug)]
pub struct Adam {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
    steps: u64,
    /// The number of skipped steps among these.
    left_out: u64,
    first: OptimizerState,
    second: OptimizerState,
}

impl Adam {
    /// Makes Adam.
    pub fn new(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self {
            betas,
            eps,
            weight_decay,
            decoupled: false,
            steps: 0,
            left_out: 0,
            first: OptimizerState::new("exp_avg"),
            second: OptimizerState::new("exp_avg_sq"),
        }
    }

    /// Makes AdamW.
    pub fn decoupled(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self { decoupled: true, ..Self::new(betas, eps, weight_decay) }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(mut self, at: StateLocation) -> Self {
        (self.first, self.second) = (self.first.kept_at(at.clone()), self.second.kept_at(at));
        self
    }
}

impl Optimizer for Adam {
    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        self.steps += 1;
        let &mut Self { betas, eps, weight_decay, decoupled, steps: step, .. } = self;
        let options = |decay: bool| AdamOptions {
            lr,
            betas,
            eps,
            weight_decay: if decay { weight_decay } else { 0.0 },
            decoupled,
            step,
        };
        let mut kinds = [&mut self.first, &mut self.second];
        each_owned(params, &mut kinds, context, |BucketUpdate { param, values, grads, states, backend }| {
            for (at, decay) in param.owned_groups() {
                let part = |flat: &FlatStorage| flat.narrow(at.clone());
                let (weights, grads) = (part(values)?, part(grads)?);
                let (first, second) = (part(&states[0])?, part(&states[1])?);
                let moments = [first.array(), second.array()];
                let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                backend.adam_step(options(decay), of, moments)?;
            }
            Ok(())
        })
    }

    fn note_left_out(&mut self, steps: u64) {
        self.left_out = steps;
    }

    fn set_momentum(&mut self, momentum: f64) {
        self.betas.0 = momentum;
    }

    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.first.reserve(params)?;
        self.second.reserve(params)
    }

    fn kinds(&self) -> Vec<&'static str> {
        vec![self.first.kind(), self.second.kind()]
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        let mut all = self.first.named(params)?;
        all.extend(self.second.named(params)?);
        Ok((self.steps - self.left_out, all))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out) = (steps, 0);
        self.first.load(params, tensors)?;
        self.second.load(params, tensors).map(drop)
    }

    fn state_bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }
}
