//! Flat state beside flat parameters: memory for the owned elements of each, addressed by parameter name when saved.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::{StateAt, owned};
use crate::backend::{MemoryKind, counted_as};
use crate::store::{FlatParam, FlatStorage};
use crate::{Result, TensorError};

/// One kind of state (a momentum, an average): a number for every owned element of what has it.
#[derive(Debug)]
pub struct FlatState {
    kind: &'static str,
    at: StateAt,
    flat: BTreeMap<usize, FlatStorage>,
}

impl FlatState {
    /// An empty state of a kind, whose name starts those of its tensors: `exp_avg.conv1.weight`.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, at: StateAt::Parameters, flat: BTreeMap::new() }
    }

    /// An empty state of this kind that will be there.
    #[must_use]
    pub fn kept_at(self, at: StateAt) -> Self {
        Self { at, ..Self::new(self.kind) }
    }

    /// Where it is.
    pub fn at(&self) -> StateAt {
        self.at
    }

    /// The state of a flat parameter, zeros at first.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn of(&mut self, param: &FlatParam) -> Result<FlatStorage> {
        if let Some(flat) = self.flat.get(&param.index()) {
            return Ok(flat.clone());
        }
        let make = || FlatStorage::zeros(param.owned().len(), param.dtype(), &self.at.place(param));
        let flat = counted_as(MemoryKind::Optimizer, make)?;
        self.flat.insert(param.index(), flat.clone());
        Ok(flat)
    }

    /// Makes the state of everything trainable.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        owned(params).try_for_each(|param| self.of(param).map(drop))
    }

    /// The state of a flat parameter, if there is one.
    pub fn get(&self, param: &FlatParam) -> Option<&FlatStorage> {
        self.flat.get(&param.index())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.flat.values().map(FlatStorage::bytes).sum()
    }

    /// Copies of the state by parameter name, in the shapes of [`FlatParam::owned_entries`].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn named(&self, params: &[FlatParam]) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for param in params {
            let Some(flat) = self.get(param) else { continue };
            for entry in param.owned_entries() {
                let len = entry.range.len();
                let part = flat.narrow(entry.range)?.copy()?.view(0..len, &entry.shape)?.to_host()?;
                all.push((format!("{}.{}", self.kind, entry.name), part));
            }
        }
        Ok(all)
    }

    /// Takes over those of `tensors` that are of this kind.
    ///
    /// # Errors
    /// If a tensor's shape is not its entry's.
    pub fn load(&mut self, params: &[FlatParam], tensors: &[(String, Tensor)]) -> Result<()> {
        let by_name: BTreeMap<&str, &Tensor> = tensors
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(self.kind)?.strip_prefix('.')?, tensor)))
            .collect();
        for param in params {
            for entry in param.owned_entries() {
                let Some(tensor) = by_name.get(entry.name.as_str()) else { continue };
                if *tensor.shape() != entry.shape {
                    return Err(TensorError::unequal("load optimizer state", &entry.shape, tensor.shape()));
                }
                self.of(param)?.narrow(entry.range)?.put(tensor)?;
            }
        }
        Ok(())
    }
}
