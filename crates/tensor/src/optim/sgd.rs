//! Stochastic gradient descent.

use candle_core::Tensor;

use super::offload::{BucketUpdate, each_owned};
use super::{Optimizer, OptimizerState, StateLocation};
use crate::backend::{ParamUpdate, ScaledStep, SgdOptions};
use crate::store::{FlatStorage, OwnedGroup, ParamBucket};
use crate::{Context, Result};

/// Gradient descent with momentum, Nesterov's variant, and weight decay added to the gradient: `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    steps: u64,
    /// The number of skipped steps among these.
    left_out: u64,
    buffer: OptimizerState,
}

impl Sgd {
    /// Makes gradient descent with `momentum` (0 for none), Nesterov's variant or not, and `weight_decay`.
    pub fn new(momentum: f64, nesterov: bool, weight_decay: f64) -> Self {
        let buffer = OptimizerState::new("momentum_buffer");
        Self { momentum, nesterov, weight_decay, steps: 0, left_out: 0, buffer }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(mut self, at: StateLocation) -> Self {
        self.buffer = self.buffer.kept_at(at);
        self
    }
}

impl Optimizer for Sgd {
    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let &mut Self { momentum, nesterov, weight_decay, .. } = self;
        // A zero buffer and the first gradient give PyTorch's first step.
        let mut kinds = Vec::from_iter((momentum != 0.0).then_some(&mut self.buffer));
        each_owned(params, &mut kinds, context, |BucketUpdate { param, values, grads, states, backend }| {
            let options = |rate: f64, decay: bool| SgdOptions {
                lr: lr * rate,
                momentum,
                nesterov,
                weight_decay: if decay { weight_decay } else { 0.0 },
                first: false,
            };
            for OwnedGroup { range, decay, rate, .. } in param.owned_groups() {
                let (weights, grads) = (values.narrow(range.clone())?, grads.narrow(range.clone())?);
                let buffer = states.first().map(|buffer| buffer.narrow(range)).transpose()?;
                let buffer = buffer.as_ref().map(FlatStorage::array);
                let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                backend.sgd_step(options(rate, decay), of, buffer)?;
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
        self.momentum = momentum;
    }

    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        if self.momentum == 0.0 { Ok(()) } else { self.buffer.reserve(params) }
    }

    fn kinds(&self) -> Vec<&'static str> {
        Vec::from_iter((self.momentum != 0.0).then(|| self.buffer.kind()))
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps - self.left_out, self.buffer.named(params)?))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out) = (steps, 0);
        self.buffer.load(params, tensors).map(drop)
    }

    fn state_bytes(&self) -> usize {
        self.buffer.bytes()
    }
}
