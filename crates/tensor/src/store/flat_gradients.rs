//! Gradients of flat parameters: added up on this rank, on their way, and summed over the ranks.

use super::{FlatParam, FlatStorage};
use crate::Result;

/// What the gradients of a [`FlatParam`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GradState {
    /// There are none.
    #[default]
    Empty,
    /// Those of this rank, which backward adds to.
    Accumulating,
    /// On their way to the sum over the ranks; nobody else may read or write them.
    Reducing,
    /// The sum over the ranks, at least for the owned elements.
    Reduced,
}

/// The memory of gradients.
#[derive(Debug, Default)]
pub(super) struct Gradients {
    state: GradState,
    full: Option<FlatStorage>,
    /// Room for the owned elements of the sum, if they have memory of their own. It is kept from step to step.
    shard: Option<FlatStorage>,
    /// For each entry whether its gradient counts as zero although older numbers are still in its memory: the first
    /// gradient overwrites them, which saves filling and adding.
    stale: Vec<bool>,
}

impl Gradients {
    pub(super) fn bytes(&self) -> usize {
        self.full.iter().chain(&self.shard).map(FlatStorage::bytes).sum()
    }
}

impl FlatParam {
    /// What the gradients are.
    pub fn grad_state(&self) -> GradState {
        self.memory().gradients.state
    }

    /// Whether there are gradients.
    pub fn has_grads(&self) -> bool {
        self.grad_state() != GradState::Empty
    }

    /// Makes gradients zero for the next step: memory that there is for all of them is kept, and nothing is written yet,
    /// because what comes first overwrites. Any state → Accumulating, or Empty without such memory. Gradients that are on
    /// their way are left to whoever moves them.
    pub fn zero_grads(&self) {
        let mut memory = self.memory_mut();
        let gradients = &mut memory.gradients;
        if gradients.state == GradState::Reducing {
            *gradients = Gradients::default();
        }
        gradients.stale = vec![true; self.entries().len()];
        gradients.state = if gradients.full.is_some() { GradState::Accumulating } else { GradState::Empty };
    }

    /// Frees the memory of gradients: any state → Empty.
    pub fn discard_grads(&self) {
        self.memory_mut().gradients = Gradients::default();
    }

    /// Overwrites all gradients: Empty or Accumulating → Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the number of elements differs.
    pub fn set_grads(&self, gradients: &FlatStorage) -> Result<()> {
        self.check(gradients, self.len())?;
        let mut memory = self.memory_mut();
        self.allocate(&mut memory.gradients)?.copy_from(gradients)?;
        memory.gradients.stale.fill(false);
        Ok(())
    }

    /// Where the gradient of a parameter is to be written, and whether it is to be added to what is there; otherwise all of it
    /// is to be overwritten. Empty or Accumulating → Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
    pub fn grad_destination(&self, entry: usize) -> Result<(FlatStorage, bool)> {
        let mut memory = self.memory_mut();
        let to = self.allocate(&mut memory.gradients)?.narrow(self.entries()[entry].range.clone())?;
        let stale = std::mem::take(&mut memory.gradients.stale[entry]);
        Ok((to, !stale))
    }

    /// All gradients, zero where none came; `None` if there is no memory for all of them.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] while they are reduced.
    pub fn grads(&self) -> Result<Option<FlatStorage>> {
        let mut memory = self.memory_mut();
        match memory.gradients.state {
            GradState::Reducing => Err(self.wrong(GradState::Reducing, "show gradients", "another state")),
            GradState::Empty => Ok(None),
            GradState::Accumulating | GradState::Reduced => {
                self.settle(&mut memory.gradients)?;
                Ok(memory.gradients.full.clone())
            }
        }
    }

    /// The gradients of the owned elements, as an optimizer takes them: the sum over the ranks, or, if this rank owns
    /// everything, what there is. `None` if there are none, or the rank owns nothing.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] while they are reduced, and before it if the rank owns some elements only.
    pub fn owned_grads(&self) -> Result<Option<FlatStorage>> {
        let full = self.grads()?;
        let memory = self.memory();
        let (gradients, owned) = (&memory.gradients, memory.owned.clone());
        let whole = owned == (0..self.len());
        match (gradients.state, &gradients.shard, full) {
            (GradState::Reduced, Some(shard), _) => Ok(Some(shard.clone())),
            (GradState::Accumulating, ..) if !whole => {
                Err(self.wrong(gradients.state, "show a rank's gradients", "Reduced"))
            }
            (_, _, Some(full)) => Ok(Some(full.narrow(owned)?)),
            (_, _, None) => Ok(None),
        }
    }

    /// Makes room for the owned elements of the sum now: then it does not lie between memory that comes and goes.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn reserve_grad_shard(&self) -> Result<()> {
        self.grad_shard(&mut self.memory_mut()).map(drop)
    }

    fn grad_shard(&self, memory: &mut super::flat_param::Memory) -> Result<FlatStorage> {
        if let Some(shard) = &memory.gradients.shard {
            return Ok(shard.clone());
        }
        let shard = self.room(memory.owned.len())?;
        memory.gradients.shard = Some(shard.clone());
        Ok(shard)
    }

    /// Gives all gradients, zero where none came, to whoever sums them over the ranks: Empty or Accumulating → Reducing. If the
    /// sum is to be scattered there is room for the owned elements of it.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
    pub fn begin_reduce(&self, scatter: bool) -> Result<(FlatStorage, Option<FlatStorage>)> {
        let mut memory = self.memory_mut();
        let full = self.allocate(&mut memory.gradients)?;
        self.settle(&mut memory.gradients)?;
        let shard = scatter.then(|| self.grad_shard(&mut memory)).transpose()?;
        memory.gradients.state = GradState::Reducing;
        Ok((full, shard))
    }

    /// Frees the memory of all gradients while the sum of the owned ones, which has room of its own, is still on its way: they
    /// have been encoded, or summed inside a group of ranks.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] unless they are being reduced.
    pub fn free_unreduced_grads(&self) -> Result<()> {
        let mut memory = self.memory_mut();
        self.require_reducing(&memory.gradients, "free unreduced gradients")?;
        memory.gradients.full = None;
        Ok(())
    }

    /// The sum is there: Reducing → Reduced. The memory of all gradients is kept, or freed.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state.
    pub fn end_reduce(&self, keep: bool) -> Result<()> {
        let mut memory = self.memory_mut();
        self.require_reducing(&memory.gradients, "end a reduction")?;
        if !keep {
            memory.gradients.full = None;
        }
        memory.gradients.state = GradState::Reduced;
        Ok(())
    }

    fn require_reducing(&self, gradients: &Gradients, operation: &'static str) -> Result<()> {
        match gradients.state {
            GradState::Reducing => Ok(()),
            other => Err(self.wrong(other, operation, "Reducing")),
        }
    }

    fn allocate(&self, gradients: &mut Gradients) -> Result<FlatStorage> {
        if let GradState::Reducing | GradState::Reduced = gradients.state {
            return Err(self.wrong(gradients.state, "add to gradients", "Empty or Accumulating"));
        }
        gradients.state = GradState::Accumulating;
        if let Some(full) = &gradients.full {
            return Ok(full.clone());
        }
        // Not filled with zeros: the first gradients overwrite.
        let full = self.room(self.len())?;
        gradients.stale = vec![true; self.entries().len()];
        gradients.full = Some(full.clone());
        Ok(full)
    }

    /// Writes the zeros that are still owed.
    fn settle(&self, gradients: &mut Gradients) -> Result<()> {
        let Some(full) = &gradients.full else { return Ok(()) };
        for (entry, stale) in self.entries().iter().zip(&mut gradients.stale) {
            if std::mem::take(stale) {
                full.zero(entry.range.clone())?;
            }
        }
        Ok(())
    }
}
