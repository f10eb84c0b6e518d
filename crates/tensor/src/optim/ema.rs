//! The exponential moving average of weights.

use std::collections::BTreeSet;

use candle_core::Tensor;

use super::{OptimizerState, StateLocation, trained};
use crate::backend::{AverageUpdate, EmaOptions, ScaledStep};
use crate::store::{FlatStorage, ParamBucket};
use crate::{Context, Result};

/// Computes average ← d·average + (1 − d)·weights after every step, with d = min(decay, (1 + n)/(10 + n)) for the
/// n-th update ([`EmaOptions::keep`]).
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    updates: u64,
    /// The number of skipped updates among these.
    left_out: u64,
    average: OptimizerState,
    /// The buckets whose averages have begun, once an update has changed anything.
    begun: BTreeSet<usize>,
}

impl Ema {
    /// Makes an average that starts at the first weights.
    pub fn new(decay: f64) -> Self {
        Self { decay, updates: 0, left_out: 0, average: OptimizerState::new("ema"), begun: BTreeSet::new() }
    }

    /// Sets the location of the averages. On the host the CPU computes them, from weights downloaded after every
    /// step.
    #[must_use]
    pub fn with_state_location(mut self, at: StateLocation) -> Self {
        self.average = self.average.kept_at(at);
        self
    }

    /// Allocates the averages of all trainable buckets now, not at the first update.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.average.reserve(params)
    }

    /// Updates the averages with the current weights.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn update(&mut self, params: &[ParamBucket], context: &Context) -> Result<()> {
        self.scaled_update(params, None, context)
    }

    /// Updates the averages after a step of a scaled loss ([`super::Optimizer::scaled_step`]), unless the step was
    /// skipped. The host counts the update in any case, until [`Ema::note_left_out`].
    ///
    /// # Errors
    /// Errors of the back end, and if averages and weights have different locations.
    pub fn scaled_update(
        &mut self,
        params: &[ParamBucket],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let options = EmaOptions { decay: self.decay, updates: self.updates };
        self.updates += 1;
        // With skipped updates, only the device knows which one is the first.
        let is_on_device = scaled.is_some() && self.begun.is_empty();
        let first = |param: &ParamBucket| param.owned_values().transpose();
        if (scaled.is_none() || params.iter().any(ParamBucket::is_trained_later))
            && let Some(values) = trained(params).find_map(first).transpose()?
        {
            // The first update of a bucket computes something else.
            let begun = if is_on_device { trained(params).count() } else { self.begun.len() };
            values.array().backend(context).branch(begun as u64)?;
        }
        let mut all = trained(params).peekable();
        while let Some(param) = all.next() {
            let Some(values) = param.owned_values()? else { continue };
            let known = !self.begun.insert(param.index()) || is_on_device;
            let average = self.average.open(param)?;
            if let Some(next) = all.peek() {
                self.average.prefetch(next);
            }
            let values =
                if average.array().is_host() { FlatStorage::new(values.to_host()?)? } else { values };
            match known {
                true => {
                    let backend = values.array().backend(context);
                    let (average, weights) = (average.array(), values.array());
                    backend.ema_step(options, AverageUpdate { average, weights, scaled })?;
                }
                false => average.copy_from(&values)?,
            }
            self.average.close(param, average)?;
        }
        Ok(())
    }

    /// Sets the number of skipped updates since the average was made or loaded.
    pub fn note_left_out(&mut self, updates: u64) {
        self.left_out = updates;
    }

    /// True if a bucket has an average.
    fn has_begun(&self, param: &ParamBucket) -> bool {
        self.updates > self.left_out && self.begun.contains(&param.index())
    }

    /// Exchanges weights and averages: once to evaluate with the averages, again to continue training.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn swap(&mut self, params: &[ParamBucket]) -> Result<()> {
        for param in trained(params) {
            let begun = self.has_begun(param);
            let Some(values) = param.owned_values()?.filter(|_| begun) else { continue };
            let average = self.average.open(param)?;
            let weights = values.copy()?;
            values.fetch(&average)?;
            average.fetch(&weights)?;
            self.average.close(param, average)?;
        }
        Ok(())
    }

    /// Returns the averages by name (`ema.{parameter}`) and the number of updates.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        let begun = params.iter().filter(|param| self.has_begun(param));
        Ok((self.updates - self.left_out, self.average.named(&begun.cloned().collect::<Vec<_>>())?))
    }

    /// Loads a state.
    ///
    /// # Errors
    /// If a tensor and its parameter have different shapes.
    pub fn load_state(
        &mut self,
        params: &[ParamBucket],
        updates: u64,
        tensors: &[(String, Tensor)],
    ) -> Result<()> {
        (self.updates, self.left_out) = (updates, 0);
        self.begun.extend(self.average.load(params, tensors)?);
        Ok(())
    }

    /// The size of the averages in bytes.
    pub fn bytes(&self) -> usize {
        self.average.bytes()
    }
}
