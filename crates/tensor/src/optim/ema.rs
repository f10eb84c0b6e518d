//! The exponential moving average of weights.

use std::collections::BTreeSet;

use candle_core::Tensor;

use super::{FlatState, StateAt, owned};
use crate::store::{FlatParam, FlatStorage};
use crate::{Context, Result};

/// average ← d·average + (1 − d)·weights after every step, with d = min(decay, (1 + n)/(10 + n)) for the n-th
/// update, so that the start is forgotten quickly (as in the reference code of latent diffusion).
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    updates: u64,
    average: FlatState,
    /// The flat parameters whose averages have begun.
    begun: BTreeSet<usize>,
}

impl Ema {
    /// An average that starts at the first weights it sees.
    pub fn new(decay: f64) -> Self {
        Self { decay, updates: 0, average: FlatState::new("ema"), begun: BTreeSet::new() }
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
        let n = self.updates as f64;
        let decay = self.decay.min((1.0 + n) / (10.0 + n));
        self.updates += 1;
        if let Some(values) = owned(params).find_map(|param| param.owned_values().transpose()).transpose()? {
            // The first time something else is computed.
            values.array().backend(context).branch(u64::from(self.begun.is_empty()))?;
        }
        let mut all = owned(params).peekable();
        while let Some(param) = all.next() {
            let Some(values) = param.owned_values()? else { continue };
            let known = !self.begun.insert(param.index());
            let average = self.average.open(param)?;
            if let Some(next) = all.peek() {
                self.average.prefetch(next);
            }
            let values =
                if average.array().is_host() { FlatStorage::new(values.to_host()?)? } else { values };
            match known {
                true => values.array().backend(context).ema_step(decay, average.array(), values.array())?,
                false => average.copy_from(&values)?,
            }
            self.average.close(param, average)?;
        }
        Ok(())
    }

    /// Exchanges weights and averages: once to evaluate with the averages, again to go on training.
    ///
    /// # Errors
    /// The back end's.
    pub fn swap(&mut self, params: &[FlatParam]) -> Result<()> {
        for param in owned(params) {
            let begun = self.begun.contains(&param.index());
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
        let begun = params.iter().filter(|param| self.begun.contains(&param.index()));
        Ok((self.updates, self.average.named(&begun.cloned().collect::<Vec<_>>())?))
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
        self.updates = updates;
        self.begun.extend(self.average.load(params, tensors)?);
        Ok(())
    }

    /// Bytes of averages held.
    pub fn bytes(&self) -> usize {
        self.average.bytes()
    }
}
