//! Stochastic gradient descent.

use candle_core::Tensor;

use super::offload::{Owned, each_owned};
use super::{FlatState, Optimizer, StateAt};
use crate::backend::{ScaledStep, SgdOptions};
use crate::store::{FlatParam, FlatStorage};
use crate::{Context, Result};

/// Gradient descent with momentum, Nesterov's variant, and weight decay added to the gradient: `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    steps: u64,
    /// Of these, those that have changed nothing.
    left_out: u64,
    buffer: FlatState,
}

impl Sgd {
    /// With `momentum` (0 for none), Nesterov's variant or not, and `weight_decay`.
    pub fn new(momentum: f64, nesterov: bool, weight_decay: f64) -> Self {
        let buffer = FlatState::new("momentum_buffer");
        Self { momentum, nesterov, weight_decay, steps: 0, left_out: 0, buffer }
    }

    /// With its state there.
    #[must_use]
    pub fn with_state_at(mut self, at: StateAt) -> Self {
        self.buffer = self.buffer.kept_at(at);
        self
    }
}

impl Optimizer for Sgd {
    fn scaled_step(
        &mut self,
        params: &[FlatParam],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let &mut Self { momentum, nesterov, weight_decay, .. } = self;
        // Zeros with momentum and the first gradient are what the first step begins with.
        let mut kinds = Vec::from_iter((momentum != 0.0).then_some(&mut self.buffer));
        each_owned(params, &mut kinds, context, |Owned { param, values, grads, states, backend }| {
            let options = |decay: bool| SgdOptions {
                lr,
                momentum,
                nesterov,
                weight_decay: if decay { weight_decay } else { 0.0 },
                first: false,
            };
            for (at, decay) in param.owned_groups() {
                let (weights, grads) = (values.narrow(at.clone())?, grads.narrow(at.clone())?);
                let buffer = states.first().map(|buffer| buffer.narrow(at)).transpose()?;
                let buffer = buffer.as_ref().map(FlatStorage::array);
                backend.sgd_step(options(decay), weights.array(), grads.array(), buffer, scaled)?;
            }
            Ok(())
        })?;
        self.steps += 1;
        Ok(())
    }

    fn note_left_out(&mut self, steps: u64) {
        self.left_out = steps;
    }

    fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        if self.momentum == 0.0 { Ok(()) } else { self.buffer.reserve(params) }
    }

    fn state(&self, params: &[FlatParam]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps - self.left_out, self.buffer.named(params)?))
    }

    fn load_state(&mut self, params: &[FlatParam], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out) = (steps, 0);
        self.buffer.load(params, tensors).map(drop)
    }

    fn state_bytes(&self) -> usize {
        self.buffer.bytes()
    }
}
