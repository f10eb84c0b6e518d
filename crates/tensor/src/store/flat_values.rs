//! Where the values of flat parameters are: all of them, a shard, or on their way.

use super::{FlatEntry, FlatParam, FlatStorage};
use crate::Result;
use crate::backend::{MemoryKind, Sent, counted_as};

/// Where the values of a [`FlatParam`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamState {
    /// There are none yet.
    Absent,
    /// All elements are in memory, and stay.
    Full,
    /// This rank's shard is in memory and nothing else.
    Sharded,
    /// All elements are on their way into memory beside the shard; nobody may read them.
    Gathering,
    /// All elements are in memory for a while, beside the shard.
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

impl FlatParam {
    /// Where the values are.
    pub fn state(&self) -> ParamState {
        self.memory().values.state()
    }

    /// All values, if they are in memory.
    pub fn values(&self) -> Option<FlatStorage> {
        self.memory().values.full().cloned()
    }

    /// The values of the owned elements, in the memory where they are kept between steps; `None` if there are none yet.
    ///
    /// # Errors
    /// If the owned elements cannot be seen as a range of all.
    pub fn owned_values(&self) -> Result<Option<FlatStorage>> {
        let memory = self.memory();
        match (memory.values.shard(), memory.values.full()) {
            (Some(shard), _) => Ok(Some(shard.clone())),
            (None, Some(full)) => Ok(Some(full.narrow(memory.owned.clone())?)),
            (None, None) => Ok(None),
        }
    }

    /// The values that this rank keeps between steps, and what they are of: its shard, or everything. `None` if there are
    /// none yet.
    pub fn kept(&self) -> Option<(FlatStorage, Vec<FlatEntry>)> {
        let memory = self.memory();
        if let Some(full) = memory.values.shard().is_none().then(|| memory.values.full()) {
            return Some((full?.clone(), self.entries().to_vec()));
        }
        let shard = memory.values.shard()?.clone();
        drop(memory);
        Some((shard, self.owned_entries()))
    }

    /// All values, wherever they lie, if this rank has them between uses or they are in memory.
    pub fn whole_values(&self) -> Option<FlatStorage> {
        let memory = self.memory();
        let shard = || memory.values.shard().filter(|shard| shard.len() == self.len());
        memory.values.full().or_else(shard).cloned()
    }

    /// Takes all values over: Absent → Full.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the number or type of the elements differs.
    pub fn fill(&self, values: FlatStorage) -> Result<()> {
        self.check(&values, self.len())?;
        let mut memory = self.memory_mut();
        self.require_absent(&memory.values)?;
        memory.values = Values::Full(values);
        Ok(())
    }

    /// Takes the values of the owned elements over: Absent → Sharded.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the number or type of the elements differs.
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
            other => Err(self.wrong(other.state(), "take values over", "Absent")),
        }
    }

    /// Keeps the owned elements' values and frees the others: Full → Sharded; and Gathered → Sharded, with what was changed in
    /// the gathered values taken over.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
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
            other => return Err(self.wrong(other.state(), "keep a shard", "Full or Gathered")),
        };
        memory.values = Values::Sharded(shard);
        Ok(())
    }

    /// Makes room for all values: Sharded → Gathering. Whoever gathers gets that room, to be filled from all ranks' shards,
    /// and this rank's shard, which lies at [`FlatParam::home`].
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
    pub fn begin_gather(&self) -> Result<(FlatStorage, FlatStorage)> {
        let mut memory = self.memory_mut();
        let shard = match &memory.values {
            Values::Sharded(shard) => shard.clone(),
            other => return Err(self.wrong(other.state(), "be gathered", "Sharded")),
        };
        let make = || FlatStorage::unwritten(self.len(), self.dtype(), self.place());
        let full = counted_as(MemoryKind::Parameters, make)?;
        memory.values = Values::Gathering { shard: shard.clone(), full: full.clone() };
        Ok((full, shard))
    }

    /// Begins to bring a shard from the host to memory of its own where it is computed with, beside what is computed: for whoever
    /// gathers. Who computes with it waits for [`Sent::arrive`].
    ///
    /// # Errors
    /// If the memory cannot be had; and the back end's.
    pub fn begin_upload(&self, shard: &FlatStorage) -> Result<(FlatStorage, Sent)> {
        let make = || FlatStorage::unwritten(shard.len(), self.dtype(), self.place());
        let to = counted_as(MemoryKind::Parameters, make)?;
        let sent = to.begin_fetch(shard)?;
        Ok((to, sent))
    }

    /// All values have arrived: Gathering → Gathered.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state.
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

    /// Frees what was gathered: Gathered → Sharded. The shard is as it was, or as the optimizer has left it.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state.
    pub fn reshard(&self) -> Result<()> {
        let mut memory = self.memory_mut();
        match std::mem::take(&mut memory.values) {
            Values::Gathered { shard, .. } => memory.values = Values::Sharded(shard),
            other => {
                let error = self.wrong(other.state(), "free what was gathered", "Gathered");
                memory.values = other;
                return Err(error);
            }
        }
        Ok(())
    }
}
