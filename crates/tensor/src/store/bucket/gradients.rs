//! Gradients of buckets: accumulated on this rank, in reduction, and summed over the ranks.

use std::collections::BTreeSet;

use candle_core::DType;

use super::{FlatStorage, ParamBucket};
use crate::Result;
use crate::backend::{Destination, Download, MemoryKind, counted_as};

/// The state of the gradients of a [`ParamBucket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GradState {
    /// No gradients.
    #[default]
    Empty,
    /// This rank's gradients, which backward adds to.
    Accumulating,
    /// In reduction over the ranks; no other reader or writer is allowed.
    Reducing,
    /// The sum over the ranks, at least for the owned elements.
    Reduced,
}

/// The memory of gradients.
#[derive(Debug, Default)]
pub(super) struct Gradients {
    pub(super) state: GradState,
    pub(super) full: Option<FlatStorage>,
    /// Memory for the owned elements of the sum, if separate. It is reused in every step.
    shard: Option<FlatStorage>,
    /// The owned elements of the sum during and after their offload to the storage device.
    offloading: Option<Download>,
    offloaded: Option<FlatStorage>,
    /// The entries with a gradient. The others count as zero, although their memory has old values: the first
    /// gradient overwrites them, which saves filling and adding.
    pub(super) written: BTreeSet<usize>,
}

impl Gradients {
    pub(super) fn bytes(&self) -> usize {
        self.full.iter().chain(&self.shard).chain(&self.offloaded).map(FlatStorage::bytes).sum()
    }

    /// Drops an offloaded sum, also one in transfer.
    fn drop_offloaded(&mut self) {
        (self.offloading, self.offloaded) = (None, None);
    }

    /// Waits for the offload.
    fn finish_offload(&mut self) -> Result<()> {
        if let Some(offloading) = self.offloading.take() {
            self.offloaded = Some(FlatStorage::new(offloading.wait()?)?);
        }
        Ok(())
    }
}

impl ParamBucket {
    /// The state of the gradients.
    pub fn grad_state(&self) -> GradState {
        self.memory().gradients.state
    }

    /// True if there are gradients.
    pub fn has_grads(&self) -> bool {
        self.grad_state() != GradState::Empty
    }

    /// Sets gradients to zero for the next step: any state → Accumulating, or Empty without memory for all of them.
    /// The memory is kept and not written yet, because the first gradient overwrites. Gradients in reduction are left
    /// to the reduction.
    pub fn zero_grads(&self) {
        let mut memory = self.memory_mut();
        let gradients = &mut memory.gradients;
        if gradients.state == GradState::Reducing {
            *gradients = Gradients::default();
        }
        gradients.written.clear();
        gradients.drop_offloaded();
        gradients.state = if gradients.full.is_some() { GradState::Accumulating } else { GradState::Empty };
    }

    /// Drops the gradients of an abandoned step and keeps their memory, unless a reduction still uses it: any state →
    /// Empty.
    pub fn forget_grads(&self) {
        let gradients = &mut self.memory_mut().gradients;
        if gradients.state == GradState::Reducing {
            *gradients = Gradients::default();
        }
        gradients.written.clear();
        gradients.drop_offloaded();
        gradients.state = GradState::Empty;
    }

    /// Frees the memory of gradients: any state → Empty.
    pub fn discard_grads(&self) {
        self.memory_mut().gradients = Gradients::default();
    }

    /// Allocates the memory that is reused in every step now: for the sum's owned elements, or for all gradients.
    /// This avoids fragmentation by short-lived memory.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve_grads(&self, scattered: bool) -> Result<()> {
        let mut memory = self.memory_mut();
        let owned = memory.owned.len();
        match scattered {
            true => self.made(&mut memory.gradients.shard, owned).map(drop),
            false => self.made(&mut memory.gradients.full, self.len()).map(drop),
        }
    }

    /// Overwrites all gradients: Empty or Accumulating → Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if the number of elements differs.
    pub fn set_grads(&self, values: &FlatStorage) -> Result<()> {
        self.check(values, self.len())?;
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        self.made(&mut gradients.full, self.len())?.copy_from(values)?;
        gradients.written.extend(0..self.entries().len());
        gradients.state = GradState::Accumulating;
        Ok(())
    }

    /// Sets the sum of gradients for the owned elements, computed elsewhere: any state but Reducing → Reduced.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] during a reduction; and if the number of elements differs.
    pub fn set_owned_grads(&self, sum: FlatStorage) -> Result<()> {
        let memory = &mut *self.memory_mut();
        self.check(&sum, memory.owned.len())?;
        if memory.gradients.state == GradState::Reducing {
            return Err(self.wrong(GradState::Reducing, "set gradients", "another state"));
        }
        memory.gradients = Gradients { shard: Some(sum), state: GradState::Reduced, ..Gradients::default() };
        Ok(())
    }

    /// Returns the destination of a parameter's gradient: Empty or Accumulating → Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if memory cannot be allocated.
    pub fn grad_destination(&self, entry: usize) -> Result<Destination> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        let full = self.made(&mut gradients.full, self.len())?;
        let array = full.narrow(self.entries()[entry].range.clone())?.array().clone();
        gradients.state = GradState::Accumulating;
        Ok(Destination { array, add: !gradients.written.insert(entry) })
    }

    /// Returns all gradients, zero for entries without one; `None` if there is no memory for all of them.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] during a reduction.
    pub fn grads(&self) -> Result<Option<FlatStorage>> {
        let memory = &mut *self.memory_mut();
        let (all, gradients) = (memory.owned == (0..self.len()), &mut memory.gradients);
        gradients.finish_offload()?;
        match gradients.state {
            GradState::Reducing => Err(self.wrong(GradState::Reducing, "read gradients", "another state")),
            GradState::Accumulating => self.settled(gradients).map(Some),
            GradState::Empty => Ok(None),
            GradState::Reduced => Ok(gradients.full.clone().or(gradients.offloaded.clone().filter(|_| all))),
        }
    }

    /// Returns the gradients of the owned elements for an optimizer: the sum over the ranks, or the accumulated ones
    /// if this rank owns everything. `None` if there are none, or the rank owns nothing.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] during a reduction, and before it if the rank owns only some elements.
    pub fn owned_grads(&self) -> Result<Option<FlatStorage>> {
        let mut memory = self.memory_mut();
        let owned = memory.owned.clone();
        let gradients = &mut memory.gradients;
        gradients.finish_offload()?;
        match (gradients.state, gradients.offloaded.as_ref().or(gradients.shard.as_ref())) {
            (GradState::Reduced, Some(sum)) => return Ok(Some(sum.clone())),
            (GradState::Accumulating, _) if owned != (0..self.len()) => {
                return Err(self.wrong(gradients.state, "read owned gradients", "Reduced"));
            }
            _ => drop(memory),
        }
        self.grads()?.map(|full| full.narrow(owned)).transpose()
    }

    /// Allocates `len` gradients of another type on this device, for a reduction that rounds them.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn wire_buffer(&self, len: usize, dtype: DType) -> Result<FlatStorage> {
        counted_as(MemoryKind::Gradients, || FlatStorage::unwritten(len, dtype, self.device()))
    }

    /// Hands all gradients, zero for entries without one, to a reduction: Empty or Accumulating → Reducing. With
    /// `scatter` there is also memory for the owned elements of the sum.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if memory cannot be allocated.
    pub fn begin_reduce(&self, scatter: bool) -> Result<(FlatStorage, Option<FlatStorage>)> {
        let mut memory = self.memory_mut();
        let (owned, gradients) = (memory.owned.len(), &mut memory.gradients);
        self.require_unreduced(gradients)?;
        let full = self.settled(gradients)?;
        let shard = scatter.then(|| self.made(&mut gradients.shard, owned).cloned()).transpose()?;
        gradients.state = GradState::Reducing;
        Ok((full, shard))
    }

    /// Frees the memory of all gradients while the owned elements of the sum, in separate memory, are still in
    /// reduction: the others have been encoded, or summed inside a group of ranks.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] unless they are in reduction.
    pub fn free_unreduced_grads(&self) -> Result<()> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_reducing(gradients, "free unreduced gradients")?;
        gradients.full = None;
        Ok(())
    }

    /// Ends a reduction: Reducing → Reduced. Keeps or frees the memory of all gradients.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state.
    pub fn end_reduce(&self, keep: bool) -> Result<()> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_reducing(gradients, "end a reduction")?;
        gradients.full.take_if(|_| !keep);
        gradients.state = GradState::Reduced;
        Ok(())
    }

    /// Begins to move the owned elements of the sum to the storage device and frees their memory: Reduced → Reduced.
    /// Later readers, and [`ParamBucket::finish_grad_offload`], wait for the transfer. Does nothing if they are there
    /// already.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and errors of the back end.
    pub fn begin_grad_offload(&self) -> Result<()> {
        if !self.is_offloaded() {
            return Ok(());
        }
        let memory = &mut *self.memory_mut();
        let (owned, gradients) = (memory.owned.clone(), &mut memory.gradients);
        if gradients.state != GradState::Reduced {
            return Err(self.wrong(gradients.state, "offload gradients", "Reduced"));
        }
        let sum = match (gradients.shard.take(), gradients.full.take()) {
            (Some(shard), _) => Some(shard),
            (None, Some(full)) => Some(full.narrow(owned)?),
            (None, None) => None,
        };
        gradients.offloading =
            sum.filter(|sum| !sum.is_empty()).map(|sum| sum.begin_download()).transpose()?;
        Ok(())
    }

    /// Waits for the offload of the sum, if one is under way.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn finish_grad_offload(&self) -> Result<()> {
        self.memory_mut().gradients.finish_offload()
    }

    pub(super) fn require_unreduced(&self, gradients: &Gradients) -> Result<()> {
        match gradients.state {
            GradState::Empty | GradState::Accumulating => Ok(()),
            other => Err(self.wrong(other, "add to gradients", "Empty or Accumulating")),
        }
    }

    fn require_reducing(&self, gradients: &Gradients, operation: &'static str) -> Result<()> {
        match gradients.state {
            GradState::Reducing => Ok(()),
            other => Err(self.wrong(other, operation, "Reducing")),
        }
    }

    /// Returns memory for `len` elements, allocated if there is none yet. It is not filled with zeros: the first
    /// gradient overwrites.
    fn made<'m>(&self, memory: &'m mut Option<FlatStorage>, len: usize) -> Result<&'m FlatStorage> {
        let made = match memory.take() {
            Some(made) => made,
            None => counted_as(MemoryKind::Gradients, || {
                FlatStorage::unwritten(len, self.dtype(), self.device())
            })?,
        };
        Ok(memory.insert(made))
    }

    /// Returns all gradients, with the pending zeros written.
    pub(super) fn settled(&self, gradients: &mut Gradients) -> Result<FlatStorage> {
        let full = self.made(&mut gradients.full, self.len())?;
        for (at, entry) in self.entries().iter().enumerate() {
            if gradients.written.insert(at) {
                full.zero(entry.range.clone())?;
            }
        }
        Ok(full.clone())
    }
}
