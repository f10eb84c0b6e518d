//! Adam and AdamW.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::first_steps::{FirstStepRange, FirstSteps};
use super::moments::Moments;
use super::offload::{BucketUpdate, each_owned};
use super::{Optimizer, StateLocation};
use crate::backend::{AdamOptions, ParamUpdate, ScaledStep};
use crate::store::{FlatStorage, OwnedGroup, ParamBucket};
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
    first_steps: FirstSteps,
    moments: Moments,
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
            first_steps: FirstSteps::default(),
            moments: Moments::new(["exp_avg", "exp_avg_sq"]),
        }
    }

    /// Makes AdamW.
    pub fn decoupled(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self { decoupled: true, ..Self::new(betas, eps, weight_decay) }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(self, at: StateLocation) -> Self {
        Self { moments: self.moments.kept_at(at), ..self }
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
        // A device counts the skipped steps itself, of which the host learns later.
        self.first_steps.note(params, self.steps - self.left_out);
        self.steps += 1;
        let &mut Self { betas, eps, weight_decay, decoupled, steps, .. } = self;
        let options = |group: &OwnedGroup, before: u64| AdamOptions {
            lr: lr * group.rate,
            betas,
            eps,
            weight_decay: if group.decay { weight_decay } else { 0.0 },
            decoupled,
            step: steps.saturating_sub(before).max(1),
        };
        let first_steps = &self.first_steps;
        let mut kinds = self.moments.both();
        each_owned(params, &mut kinds, context, |BucketUpdate { param, values, grads, states, backend }| {
            for group in param.owned_groups() {
                for FirstStepRange { range, before } in first_steps.split(param, group.range.clone()) {
                    let part = |flat: &FlatStorage| flat.narrow(range.clone());
                    let (weights, grads) = (part(values)?, part(grads)?);
                    let (first, second) = (part(&states[0])?, part(&states[1])?);
                    let moments = [first.array(), second.array()];
                    let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                    backend.adam_step(options(&group, before), of, moments)?;
                }
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
        self.moments.reserve(params)
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.moments.kinds().to_vec()
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps - self.left_out, self.moments.named(params)?))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out) = (steps, 0);
        let [kind, _] = self.moments.kinds();
        let names = tensors
            .iter()
            .filter_map(|(name, _)| name.strip_prefix(kind)?.strip_prefix('.').map(str::to_owned));
        self.first_steps.add(names);
        self.moments.load(params, tensors)
    }

    fn first_steps(&self) -> BTreeMap<String, u64> {
        self.first_steps.late()
    }

    fn load_first_steps(&mut self, before: BTreeMap<String, u64>) {
        self.first_steps.load(before);
    }

    fn state_bytes(&self) -> usize {
        self.moments.bytes()
    }
}
