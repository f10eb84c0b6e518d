//! Adam and AdamW.

use candle_core::Tensor;
use phalanx_kernels::{AdamOptions, adam_step};

use super::{FlatState, Optimizer};
use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::Unit;
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
    fn step(&mut self, units: &[Unit], lr: f64, context: &Context) -> Result<()> {
        const OP: &str = "adam";
        self.steps += 1;
        for unit in units.iter().filter(|unit| unit.trainable()) {
            let (Some(values), Some(grads)) = (unit.values(), unit.grads()?) else { continue };
            let options = AdamOptions {
                lr,
                betas: self.betas,
                eps: self.eps,
                weight_decay: if unit.decay() { self.weight_decay } else { 0.0 },
                decoupled: self.decoupled,
                step: self.steps,
            };
            let (first, second) = (self.first.of(unit)?, self.second.of(unit)?);
            let grads = Contiguous::locked(OP, &grads)?;
            dispatch!(OP, unit.dtype(), T => with_slice_mut::<T, _>(OP, &values, |weights| {
                with_slice_mut::<T, _>(OP, &first, |first| {
                    with_slice_mut::<T, _>(OP, &second, |second| {
                        Ok(adam_step(context, options, weights, grads.slice::<T>()?, first, second)?)
                    })
                })
            }))?;
        }
        Ok(())
    }

    fn reserve(&mut self, units: &[Unit]) -> Result<()> {
        self.first.reserve(units)?;
        self.second.reserve(units)
    }

    fn state(&self, units: &[Unit]) -> Result<(u64, Vec<(String, Tensor)>)> {
        let mut all = self.first.named(units)?;
        all.extend(self.second.named(units)?);
        Ok((self.steps, all))
    }

    fn load_state(&mut self, units: &[Unit], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.steps = steps;
        self.first.load(units, tensors)?;
        self.second.load(units, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }
}
