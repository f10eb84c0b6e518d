//! Flat state beside flat parameters: memory for the owned elements of each, addressed by parameter name when saved.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::disk::Reading;
use super::{StateAt, owned};
use crate::backend::{MemoryKind, counted_as};
use crate::store::{FlatParam, FlatStorage};
use crate::{Result, TensorError};

/// One kind of state (a momentum, an average): a number for every owned element of what has it.
#[derive(Debug)]
pub struct FlatState {
    kind: &'static str,
    at: StateAt,
    flat: BTreeMap<usize, Held>,
}

/// The state of a flat parameter.
#[derive(Debug)]
enum Held {
    Memory(FlatStorage),
    /// In a file; on its way to memory, if somebody will want it soon.
    OnDisk(Option<Reading>),
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
    pub fn at(&self) -> &StateAt {
        &self.at
    }

    fn zeros(&self, param: &FlatParam) -> Result<FlatStorage> {
        let make = || FlatStorage::zeros(param.owned().len(), param.dtype(), &self.at.place(param));
        counted_as(MemoryKind::Optimizer, make)
    }

    /// Begins to bring the state of a flat parameter to memory, for [`FlatState::open`].
    pub fn prefetch(&mut self, param: &FlatParam) {
        if let (StateAt::Disk(disk), Some(Held::OnDisk(reading @ None))) =
            (&self.at, self.flat.get_mut(&param.index()))
        {
            *reading = Some(disk.read(self.kind, param.index(), param.owned().len(), param.dtype()));
        }
    }

    /// The state of a flat parameter in memory, zeros at first. What was changed is given to [`FlatState::close`].
    ///
    /// # Errors
    /// If memory cannot be allocated, or a file cannot be read.
    pub fn open(&mut self, param: &FlatParam) -> Result<FlatStorage> {
        self.prefetch(param);
        match self.flat.get_mut(&param.index()) {
            Some(Held::Memory(flat)) => Ok(flat.clone()),
            Some(Held::OnDisk(reading)) => match reading.take() {
                Some(reading) => reading.take(),
                None => self.zeros(param),
            },
            None => {
                let flat = self.zeros(param)?;
                if !matches!(self.at, StateAt::Disk(_)) {
                    self.flat.insert(param.index(), Held::Memory(flat.clone()));
                }
                Ok(flat)
            }
        }
    }

    /// Keeps what [`FlatState::open`] gave, as it is now.
    ///
    /// # Errors
    /// If something that was kept before could not be written.
    pub fn close(&mut self, param: &FlatParam, flat: FlatStorage) -> Result<()> {
        let StateAt::Disk(disk) = &self.at else { return Ok(()) };
        self.flat.insert(param.index(), Held::OnDisk(None));
        disk.write(self.kind, param.index(), flat)
    }

    /// Makes the state of everything trainable, where it lies in memory.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, params: &[FlatParam]) -> Result<()> {
        match self.at {
            StateAt::Disk(_) => Ok(()),
            _ => owned(params).try_for_each(|param| self.open(param).map(drop)),
        }
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        let in_memory = self.flat.values().map(|held| match held {
            Held::Memory(flat) => flat.bytes(),
            Held::OnDisk(_) => 0,
        });
        in_memory.sum()
    }

    /// The state of a flat parameter in memory, to be looked at.
    fn look(&self, param: &FlatParam) -> Result<Option<FlatStorage>> {
        match (self.flat.get(&param.index()), &self.at) {
            (Some(Held::Memory(flat)), _) => Ok(Some(flat.clone())),
            (Some(Held::OnDisk(_)), StateAt::Disk(disk)) => {
                disk.read(self.kind, param.index(), param.owned().len(), param.dtype()).take().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Copies of the state by parameter name, in the shapes of [`FlatParam::owned_entries`].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn named(&self, params: &[FlatParam]) -> Result<Vec<(String, Tensor)>> {
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

    /// Takes over those of `tensors` that are of this kind: the indices of the flat parameters that they are of.
    ///
    /// # Errors
    /// If a tensor's shape is not its entry's.
    pub fn load(&mut self, params: &[FlatParam], tensors: &[(String, Tensor)]) -> Result<Vec<usize>> {
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
