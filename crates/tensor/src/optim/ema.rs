//! The exponential moving average of weights.

use std::collections::BTreeSet;

use candle_core::Tensor;

use super::{FlatState, StateAt, owned};
use crate::backend::{EmaOptions, ScaledStep};
use crate::store::{FlatParam, FlatStorage};
use crate::{Context, Result};

/// average ← d·average + (1 − d)·weights after every step, with d = min(decay, (1 + n)/(10 + n)) for the n-th
/// update ([`EmaOptions::keep`]).
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    updates: u64,
    /// Of these, those that have changed nothing.
    left_out: u64,
    average: FlatState,
    /// The flat parameters whose averages have begun, once an update has changed anything.
    begun: BTreeSet<usize>,
}

impl Ema {
    /// An average that starts at the first weights it sees.
    pub fn new(decay: f64) -> Self {
        Self { decay, updates: 0, left_out: 0, average: FlatState::new("ema"), begun: BTreeSet::new() }
    }

    /// With the averages there: on the host they are computed by the processor, from weights that go there after every step.
    #[must_use]
    pub fn with_state_at(mut self, at: StateAt) -> Self {
        self.average = self.average.kept_at(at);
        self
    }

    /// Allocates the averages of everything trainable now, not at the first update.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        self.average.reserve(params)
    }

    /// Takes the current weights in.
    ///
    /// # Errors
    /// The back end's.
    pub fn update(&mut self, params: &[FlatParam], context: &Context) -> Result<()> {
        self.scaled_update(params, None, context)
    }

    /// Takes the weights in that a step of a scaled loss has changed ([`super::Optimizer::scaled_step`]), unless it was left out. The
    /// host counts it all the same, until [`Ema::note_left_out`].
    ///
    /// # Errors
    /// The back end's, and if averages are kept elsewhere than the weights.
    pub fn scaled_update(
        &mut self,
        params: &[FlatParam],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let options = EmaOptions { decay: self.decay, updates: self.updates };
        self.updates += 1;
        let first = |param: &FlatParam| param.owned_values().transpose();
        if scaled.is_none()
            && let Some(values) = owned(params).find_map(first).transpose()?
        {
            // The first time something else is computed.
            values.array().backend(context).branch(u64::from(self.begun.is_empty()))?;
        }
        let mut all = owned(params).peekable();
        while let Some(param) = all.next() {
            let Some(values) = param.owned_values()? else { continue };
            // Of what a device may leave out it knows itself which is the first.
            let known = !self.begun.insert(param.index()) || scaled.is_some();
            let average = self.average.open(param)?;
            if let Some(next) = all.peek() {
                self.average.prefetch(next);
            }
            let values =
                if average.array().is_host() { FlatStorage::new(values.to_host()?)? } else { values };
            match known {
                true => {
                    let backend = values.array().backend(context);
                    backend.ema_step(options, average.array(), values.array(), scaled)?;
                }
                false => average.copy_from(&values)?,
            }
            self.average.close(param, average)?;
        }
        Ok(())
    }

    /// Learns that so many of the updates since it was made or loaded have changed nothing.
    pub fn note_left_out(&mut self, updates: u64) {
        self.left_out = updates;
    }

    /// Whether there is an average of a flat parameter.
    fn has_begun(&self, param: &FlatParam) -> bool {
        self.updates > self.left_out && self.begun.contains(&param.index())
    }

    /// Exchanges weights and averages: once to evaluate with the averages, again to go on training.
    ///
    /// # Errors
    /// The back end's.
    pub fn swap(&mut self, params: &[FlatParam]) -> Result<()> {
        for param in owned(params) {
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

    /// The averages by name (`ema.{parameter}`) and the number of updates.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn state(&self, params: &[FlatParam]) -> Result<(u64, Vec<(String, Tensor)>)> {
        let begun = params.iter().filter(|param| self.has_begun(param));
        Ok((self.updates - self.left_out, self.average.named(&begun.cloned().collect::<Vec<_>>())?))
    }

    /// Takes a state over.
    ///
    /// # Errors
    /// If a tensor's shape is not its parameter's.
    pub fn load_state(
        &mut self,
        params: &[FlatParam],
        updates: u64,
        tensors: &[(String, Tensor)],
    ) -> Result<()> {
        (self.updates, self.left_out) = (updates, 0);
        self.begun.extend(self.average.load(params, tensors)?);
        Ok(())
    }

    /// Bytes of averages held.
    pub fn bytes(&self) -> usize {
        self.average.bytes()
    }
}
