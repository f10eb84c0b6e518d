//! Stochastic gradient descent.

use candle_core::Tensor;
use phalanx_kernels::{SgdOptions, sgd_step};

use super::{FlatState, Optimizer, owned};
use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::FlatParam;
use crate::{Context, Result};

/// Gradient descent with momentum, Nesterov's variant, and weight decay added to the gradient: `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    steps: u64,
    buffer: FlatState,
}

impl Sgd {
    /// With `momentum` (0 for none), Nesterov's variant or not, and `weight_decay`.
    pub fn new(momentum: f64, nesterov: bool, weight_decay: f64) -> Self {
        Self { momentum, nesterov, weight_decay, steps: 0, buffer: FlatState::new("momentum_buffer") }
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, params: &[FlatParam], lr: f64, context: &Context) -> Result<()> {
        const OP: &str = "sgd";
        for param in owned(params) {
            let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
            let first = self.buffer.get(param).is_none();
            let options = |decay: bool| SgdOptions {
                lr,
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay: if decay { self.weight_decay } else { 0.0 },
                first,
            };
            let grads = Contiguous::locked(OP, grads.tensor())?;
            dispatch!(OP, param.dtype(), T => with_slice_mut::<T, _>(OP, values.tensor(), |weights| {
                let (grads, groups) = (grads.slice::<T>()?, param.owned_groups());
                if self.momentum == 0.0 {
                    for (at, decay) in groups {
                        sgd_step(context, options(decay), &mut weights[at.clone()], &grads[at], &mut [])?;
                    }
                    return Ok(());
                }
                with_slice_mut::<T, _>(OP, self.buffer.of(param)?.tensor(), |buffer| {
                    for (at, decay) in groups {
                        let (weights, grads) = (&mut weights[at.clone()], &grads[at.clone()]);
                        sgd_step(context, options(decay), weights, grads, &mut buffer[at])?;
                    }
                    Ok(())
                })
            }))?;
        }
        self.steps += 1;
        Ok(())
    }

    fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        // Zeros with momentum and the first gradient are what the first step begins with.
        if self.momentum == 0.0 { Ok(()) } else { self.buffer.reserve(params) }
    }

    fn state(&self, params: &[FlatParam]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps, self.buffer.named(params)?))
    }

    fn load_state(&mut self, params: &[FlatParam], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.steps = steps;
        self.buffer.load(params, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.buffer.bytes()
    }
}
