//! Optimizer state of buckets, in memory or on a disk, addressed by parameter name when saved.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::disk::PendingRead;
use super::{StateLocation, owned};
use crate::backend::{MemoryKind, counted_as};
use crate::store::{FlatStorage, ParamBucket};
use crate::{Result, TensorError};

/// One kind of state (a momentum, an average): one number for every owned element.
#[derive(Debug)]
pub struct OptimizerState {
    kind: &'static str,
    at: StateLocation,
    flat: BTreeMap<usize, StoredState>,
}

/// The state of a bucket.
#[derive(Debug)]
enum StoredState {
    InMemory(FlatStorage),
    /// In a file; being read, if it was prefetched.
    OnDisk(Option<PendingRead>),
}

impl OptimizerState {
    /// Makes an empty state of a kind, which prefixes the names of its tensors: `exp_avg.conv1.weight`.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, at: StateLocation::Parameters, flat: BTreeMap::new() }
    }

    /// Makes an empty state of this kind at another location.
    #[must_use]
    pub fn kept_at(self, at: StateLocation) -> Self {
        Self { at, ..Self::new(self.kind) }
    }

    /// The kind, which prefixes the names of its tensors.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The location of the state.
    pub fn at(&self) -> &StateLocation {
        &self.at
    }

    fn zeros(&self, param: &ParamBucket) -> Result<FlatStorage> {
        let make = || FlatStorage::zeros(param.owned().len(), param.dtype(), &self.at.device(param));
        counted_as(MemoryKind::Optimizer, make)
    }

    /// Begins to read the state of a bucket, for [`OptimizerState::open`].
    pub fn prefetch(&mut self, param: &ParamBucket) {
        if let (StateLocation::Disk(disk), Some(StoredState::OnDisk(reading @ None))) =
            (&self.at, self.flat.get_mut(&param.index()))
        {
            *reading = Some(disk.read(self.kind, param.index(), param.owned().len(), param.dtype()));
        }
    }

    /// Returns the state of a bucket in memory, zeros at first. After a change, call [`OptimizerState::close`].
    ///
    /// # Errors
    /// If memory cannot be allocated, or a file cannot be read.
    pub fn open(&mut self, param: &ParamBucket) -> Result<FlatStorage> {
        self.prefetch(param);
        match self.flat.get_mut(&param.index()) {
            Some(StoredState::InMemory(flat)) => Ok(flat.clone()),
            Some(StoredState::OnDisk(reading)) => match reading.take() {
                Some(reading) => reading.take(),
                None => self.zeros(param),
            },
            None => {
                let flat = self.zeros(param)?;
                if !matches!(self.at, StateLocation::Disk(_)) {
                    self.flat.insert(param.index(), StoredState::InMemory(flat.clone()));
                }
                Ok(flat)
            }
        }
    }

    /// Stores the changed state of [`OptimizerState::open`].
    ///
    /// # Errors
    /// If an earlier write failed.
    pub fn close(&mut self, param: &ParamBucket, flat: FlatStorage) -> Result<()> {
        let StateLocation::Disk(disk) = &self.at else { return Ok(()) };
        self.flat.insert(param.index(), StoredState::OnDisk(None));
        disk.write(self.kind, param.index(), flat)
    }

    /// Allocates the state of all trainable buckets, unless it is on a disk.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        match self.at {
            StateLocation::Disk(_) => Ok(()),
            _ => owned(params).try_for_each(|param| self.open(param).map(drop)),
        }
    }

    /// The size of the state in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let in_memory = self.flat.values().map(|held| match held {
            StoredState::InMemory(flat) => flat.bytes(),
            StoredState::OnDisk(_) => 0,
        });
        in_memory.sum()
    }

    /// Returns the state of a bucket for reading.
    fn look(&self, param: &ParamBucket) -> Result<Option<FlatStorage>> {
        match (self.flat.get(&param.index()), &self.at) {
            (Some(StoredState::InMemory(flat)), _) => Ok(Some(flat.clone())),
            (Some(StoredState::OnDisk(_)), StateLocation::Disk(disk)) => {
                disk.read(self.kind, param.index(), param.owned().len(), param.dtype()).take().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Copies the state by parameter name, in the shapes of [`ParamBucket::owned_entries`].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn named(&self, params: &[ParamBucket]) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for param in params {
            let Some(flat) = self.look(param)? else { continue };
            for entry in param.owned_entries() {
                let len = entry.range.len();
                let part = flat.narrow(entry.range)?.copy()?.view(0..len, &entry.shape)?.to_host()?;
                all.push((format!("{}.{}", self.kind, entry.name), part));
            }
        }
        Ok(all)
    }

    /// Loads the tensors of this kind, and returns the indices of their buckets.
    ///
    /// # Errors
    /// If a tensor and its entry have different shapes.
    pub fn load(&mut self, params: &[ParamBucket], tensors: &[(String, Tensor)]) -> Result<Vec<usize>> {
        let by_name: BTreeMap<&str, &Tensor> = tensors
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(self.kind)?.strip_prefix('.')?, tensor)))
            .collect();
        let mut loaded = Vec::new();
        for param in params {
            let mut opened = None;
            for entry in param.owned_entries() {
                let Some(tensor) = by_name.get(entry.name.as_str()) else { continue };
                if *tensor.shape() != entry.shape {
                    return Err(TensorError::unequal("load optimizer state", &entry.shape, tensor.shape()));
                }
                let flat = match &opened {
                    Some(flat) => flat,
                    None => opened.insert(self.open(param)?),
                };
                flat.narrow(entry.range)?.put(tensor)?;
            }
            if let Some(flat) = opened {
                self.close(param, flat)?;
                loaded.push(param.index());
            }
        }
        Ok(loaded)
    }
}
