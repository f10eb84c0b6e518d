//! Adam and AdamW.

use candle_core::Tensor;
use phalanx_kernels::{AdamOptions, adam_step};

use super::{FlatState, Optimizer, owned};
use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::FlatParam;
use crate::{Context, Result};

/// Adam (Kingma & Ba 2015) with weight decay added to the gradient as in `torch.optim.Adam`, or taken off the
/// weights as in `torch.optim.AdamW` (Loshchilov & Hutter 2019).
#[derive(Debug)]
pub struct Adam {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
    steps: u64,
    first: FlatState,
    second: FlatState,
}

impl Adam {
    /// Adam.
    pub fn new(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self {
            betas,
            eps,
            weight_decay,
            decoupled: false,
            steps: 0,
            first: FlatState::new("exp_avg"),
            second: FlatState::new("exp_avg_sq"),
        }
    }

    /// AdamW.
    pub fn decoupled(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self { decoupled: true, ..Self::new(betas, eps, weight_decay) }
    }
}

impl Optimizer for Adam {
    fn step(&mut self, params: &[FlatParam], lr: f64, context: &Context) -> Result<()> {
        const OP: &str = "adam";
        self.steps += 1;
        let options = |decay: bool| AdamOptions {
            lr,
            betas: self.betas,
            eps: self.eps,
            weight_decay: if decay { self.weight_decay } else { 0.0 },
            decoupled: self.decoupled,
            step: self.steps,
        };
        for param in owned(params) {
            let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
            let (first, second) = (self.first.of(param)?, self.second.of(param)?);
            let grads = Contiguous::locked(OP, grads.tensor())?;
            dispatch!(OP, param.dtype(), T => with_slice_mut::<T, _>(OP, values.tensor(), |weights| {
                with_slice_mut::<T, _>(OP, first.tensor(), |first| {
                    with_slice_mut::<T, _>(OP, second.tensor(), |second| {
                        let grads = grads.slice::<T>()?;
                        for (at, decay) in param.owned_groups() {
                            let (weights, grads) = (&mut weights[at.clone()], &grads[at.clone()]);
                            let (first, second) = (&mut first[at.clone()], &mut second[at]);
                            adam_step(context, options(decay), weights, grads, first, second)?;
                        }
                        Ok(())
                    })
                })
            }))?;
        }
        Ok(())
    }

    fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        self.first.reserve(params)?;
        self.second.reserve(params)
    }

    fn state(&self, params: &[FlatParam]) -> Result<(u64, Vec<(String, Tensor)>)> {
        let mut all = self.first.named(params)?;
        all.extend(self.second.named(params)?);
        Ok((self.steps, all))
    }

    fn load_state(&mut self, params: &[FlatParam], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.steps = steps;
        self.first.load(params, tensors)?;
        self.second.load(params, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }
}
