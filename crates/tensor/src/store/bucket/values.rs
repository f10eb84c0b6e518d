//! Values of buckets: complete, sharded, or in transfer.

use super::{BucketEntry, FlatStorage, ParamBucket};
use crate::Result;
use crate::backend::{MemoryKind, Upload, counted_as};

/// The state of the values of a [`ParamBucket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamState {
    /// No values yet.
    Absent,
    /// All elements are in memory, permanently.
    Full,
    /// Only this rank's shard is in memory.
    Sharded,
    /// All elements are being gathered, next to the shard; no reader is allowed.
    Gathering,
    /// All elements are in memory temporarily, next to the shard.
    Gathered,
}

/// The memory of values, by state.
#[derive(Debug, Default)]
pub(super) enum Values {
    #[default]
    Absent,
    Full(FlatStorage),
    Sharded(FlatStorage),
    Gathering {
        shard: FlatStorage,
        full: FlatStorage,
    },
    Gathered {
        shard: FlatStorage,
        full: FlatStorage,
    },
}

impl Values {
    pub(super) fn state(&self) -> ParamState {
        match self {
            Self::Absent => ParamState::Absent,
            Self::Full(_) => ParamState::Full,
            Self::Sharded(_) => ParamState::Sharded,
            Self::Gathering { .. } => ParamState::Gathering,
            Self::Gathered { .. } => ParamState::Gathered,
        }
    }

    fn full(&self) -> Option<&FlatStorage> {
        match self {
            Self::Full(full) | Self::Gathered { full, .. } => Some(full),
            Self::Absent | Self::Sharded(_) | Self::Gathering { .. } => None,
        }
    }

    fn shard(&self) -> Option<&FlatStorage> {
        match self {
            Self::Sharded(shard) | Self::Gathering { shard, .. } | Self::Gathered { shard, .. } => {
                Some(shard)
            }
            Self::Absent | Self::Full(_) => None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let full = match self {
            Self::Gathering { full, .. } => Some(full),
            _ => self.full(),
        };
        full.into_iter().chain(self.shard()).map(FlatStorage::bytes).sum()
    }
}

impl ParamBucket {
    /// The state of the values.
    pub fn state(&self) -> ParamState {
        self.memory().values.state()
    }

    /// All values, if they are in memory.
    pub fn values(&self) -> Option<FlatStorage> {
        self.memory().values.full().cloned()
    }

    /// Returns the values of the owned elements, in the memory that keeps them between steps; `None` if there are
    /// none yet.
    ///
    /// # Errors
    /// If the range of owned elements is not valid.
    pub fn owned_values(&self) -> Result<Option<FlatStorage>> {
        let memory = self.memory();
        match (memory.values.shard(), memory.values.full()) {
            (Some(shard), _) => Ok(Some(shard.clone())),
            (None, Some(full)) => Ok(Some(full.narrow(memory.owned.clone())?)),
            (None, None) => Ok(None),
        }
    }

    /// The values that this rank keeps between steps, with their entries: its shard, or everything. `None` if there
    /// are none yet.
    pub fn kept(&self) -> Option<(FlatStorage, Vec<BucketEntry>)> {
        let memory = self.memory();
        if let Some(full) = memory.values.shard().is_none().then(|| memory.values.full()) {
            return Some((full?.clone(), self.entries().to_vec()));
        }
        let shard = memory.values.shard()?.clone();
        drop(memory);
        Some((shard, self.owned_entries()))
    }

    /// All values, on any device, if this rank keeps them between uses or they are in memory.
    pub fn whole_values(&self) -> Option<FlatStorage> {
        let memory = self.memory();
        let shard = || memory.values.shard().filter(|shard| shard.len() == self.len());
        memory.values.full().or_else(shard).cloned()
    }

    /// Sets all values: Absent → Full.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if the number or type of the elements differs.
    pub fn fill(&self, values: FlatStorage) -> Result<()> {
        self.check(&values, self.len())?;
        let mut memory = self.memory_mut();
        self.require_absent(&memory.values)?;
        memory.values = Values::Full(values);
        Ok(())
    }

    /// Sets the values of the owned elements: Absent → Sharded.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if the number or type of the elements differs.
    pub fn fill_shard(&self, shard: FlatStorage) -> Result<()> {
        let mut memory = self.memory_mut();
        self.check(&shard, memory.owned.len())?;
        self.require_absent(&memory.values)?;
        memory.values = Values::Sharded(shard);
        Ok(())
    }

    fn require_absent(&self, values: &Values) -> Result<()> {
        match values {
            Values::Absent => Ok(()),
            other => Err(self.wrong(other.state(), "be filled", "Absent")),
        }
    }

    /// Keeps the owned elements' values and frees the others: Full → Sharded, or Gathered → Sharded with changes of
    /// the gathered values copied to the shard.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if memory cannot be allocated.
    pub fn shard(&self) -> Result<()> {
        let mut memory = self.memory_mut();
        let owned = memory.owned.clone();
        let shard = match &memory.values {
            Values::Full(full) if owned == (0..full.len()) => full.clone(),
            Values::Full(full) => full.narrow(owned)?.copy()?,
            Values::Gathered { shard, full } => {
                shard.fetch(&full.narrow(owned)?)?;
                shard.clone()
            }
            other => return Err(self.wrong(other.state(), "be sharded", "Full or Gathered")),
        };
        memory.values = Values::Sharded(shard);
        Ok(())
    }

    /// Allocates memory for all values: Sharded → Gathering. Returns that memory, for the gather to fill, and this
    /// rank's shard, which is on [`ParamBucket::storage_device`].
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if memory cannot be allocated.
    pub fn begin_gather(&self) -> Result<(FlatStorage, FlatStorage)> {
        let mut memory = self.memory_mut();
        let shard = match &memory.values {
            Values::Sharded(shard) => shard.clone(),
            other => return Err(self.wrong(other.state(), "be gathered", "Sharded")),
        };
        let make = || FlatStorage::unwritten(self.len(), self.dtype(), self.device());
        let full = counted_as(MemoryKind::Parameters, make)?;
        memory.values = Values::Gathering { shard: shard.clone(), full: full.clone() };
        Ok((full, shard))
    }

    /// Begins to upload a shard from the host to new memory on the bucket's device, for a gather. Users must first
    /// call [`Upload::wait`].
    ///
    /// # Errors
    /// If memory cannot be allocated; and errors of the back end.
    pub fn begin_upload(&self, shard: &FlatStorage) -> Result<(FlatStorage, Upload)> {
        let make = || FlatStorage::unwritten(shard.len(), self.dtype(), self.device());
        let to = counted_as(MemoryKind::Parameters, make)?;
        let sent = to.begin_upload_from(shard)?;
        Ok((to, sent))
    }

    /// Ends a gather: Gathering → Gathered.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state.
    pub fn end_gather(&self) -> Result<()> {
        let mut memory = self.memory_mut();
        match std::mem::take(&mut memory.values) {
            Values::Gathering { shard, full } => memory.values = Values::Gathered { shard, full },
            other => {
                let error = self.wrong(other.state(), "end gathering", "Gathering");
                memory.values = other;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Frees the gathered values: Gathered → Sharded. The shard keeps its values.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state.
    pub fn reshard(&self) -> Result<()> {
        let mut memory = self.memory_mut();
        match std::mem::take(&mut memory.values) {
            Values::Gathered { shard, .. } => memory.values = Values::Sharded(shard),
            other => {
                let error = self.wrong(other.state(), "be resharded", "Gathered");
                memory.values = other;
                return Err(error);
            }
        }
        Ok(())
    }
}
