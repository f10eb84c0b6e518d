//! Stochastic gradient descent.

use candle_core::Tensor;
use phalanx_kernels::{SgdOptions, sgd_step};

use super::{FlatState, Optimizer};
use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::Unit;
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
    fn step(&mut self, units: &[Unit], lr: f64, context: &Context) -> Result<()> {
        const OP: &str = "sgd";
        for unit in units.iter().filter(|unit| unit.trainable()) {
            let (Some(values), Some(grads)) = (unit.values(), unit.grads()?) else { continue };
            let options = SgdOptions {
                lr,
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay: if unit.decay() { self.weight_decay } else { 0.0 },
                first: self.buffer.get(unit).is_none(),
            };
            let grads = Contiguous::locked(OP, &grads)?;
            dispatch!(OP, unit.dtype(), T => with_slice_mut::<T, _>(OP, &values, |weights| {
                let grads = grads.slice::<T>()?;
                if self.momentum == 0.0 {
                    return Ok(sgd_step(context, options, weights, grads, &mut [])?);
                }
                with_slice_mut::<T, _>(OP, &self.buffer.of(unit)?, |buffer| {
                    Ok(sgd_step(context, options, weights, grads, buffer)?)
                })
            }))?;
        }
        self.steps += 1;
        Ok(())
    }

    fn reserve(&mut self, units: &[Unit]) -> Result<()> {
        // Zeros with momentum and the first gradient are what the first step begins with.
        if self.momentum == 0.0 { Ok(()) } else { self.buffer.reserve(units) }
    }

    fn state(&self, units: &[Unit]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps, self.buffer.named(units)?))
    }

    fn load_state(&mut self, units: &[Unit], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.steps = steps;
        self.buffer.load(units, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.buffer.bytes()
    }
}
