//! The exponential moving average of weights.

use candle_core::Tensor;
use phalanx_kernels::ema_step;

use super::FlatState;
use crate::storage::{Contiguous, copy_in_place, dispatch, with_slice_mut};
use crate::store::Unit;
use crate::{Context, Result};

/// average ← d·average + (1 − d)·weights after every step, with d = min(decay, (1 + n)/(10 + n)) for the n-th
/// update, so that the start is forgotten quickly (as in the reference code of latent diffusion).
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    updates: u64,
    average: FlatState,
}

impl Ema {
    /// An average that starts at the first weights it sees.
    pub fn new(decay: f64) -> Self {
        Self { decay, updates: 0, average: FlatState::new("ema") }
    }

    /// Takes the current weights in.
    ///
    /// # Errors
    /// If a unit's values are not in memory.
    pub fn update(&mut self, units: &[Unit], context: &Context) -> Result<()> {
        const OP: &str = "ema";
        let n = self.updates as f64;
        let decay = self.decay.min((1.0 + n) / (10.0 + n));
        self.updates += 1;
        for unit in units.iter().filter(|unit| unit.trainable()) {
            let Some(values) = unit.values() else { continue };
            let known = self.average.get(unit).is_some();
            let average = self.average.of(unit)?;
            if !known {
                copy_in_place(&average, &values)?;
                continue;
            }
            let weights = Contiguous::locked(OP, &values)?;
            dispatch!(OP, unit.dtype(), T => with_slice_mut::<T, _>(OP, &average, |average| {
                Ok(ema_step(context, decay, average, weights.slice::<T>()?)?)
            }))?;
        }
        Ok(())
    }

    /// Exchanges weights and averages: once to evaluate with the averages, again to go on training.
    ///
    /// # Errors
    /// If a unit's values are not in memory.
    pub fn swap(&mut self, units: &[Unit]) -> Result<()> {
        for unit in units.iter().filter(|unit| unit.trainable()) {
            let (Some(values), Some(average)) = (unit.values(), self.average.get(unit)) else { continue };
            let weights = values.force_contiguous()?;
            copy_in_place(&values, average)?;
            copy_in_place(average, &weights)?;
        }
        Ok(())
    }

    /// The averages by name (`ema.{parameter}`) and the number of updates.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn state(&self, units: &[Unit]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.updates, self.average.named(units)?))
    }

    /// Takes a state over.
    ///
    /// # Errors
    /// If a tensor's shape is not its parameter's.
    pub fn load_state(&mut self, units: &[Unit], updates: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.updates = updates;
        self.average.load(units, tensors)
    }

    /// Bytes of averages held.
    pub fn bytes(&self) -> usize {
        self.average.bytes()
    }
}
