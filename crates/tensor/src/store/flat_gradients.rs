//! Gradients of flat parameters: added up on this rank, on their way, and summed over the ranks.

use std::collections::BTreeSet;

use candle_core::DType;

use super::{FlatParam, FlatStorage};
use crate::Result;
use crate::backend::{Arriving, Destination, MemoryKind, counted_as};

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
    pub(super) state: GradState,
    pub(super) full: Option<FlatStorage>,
    /// Room for the owned elements of the sum, if they have memory of their own. It is kept from step to step.
    shard: Option<FlatStorage>,
    /// The owned elements of the sum on their way home, and there, where that is not where they were summed.
    leaving: Option<Arriving>,
    home: Option<FlatStorage>,
    /// The entries that a gradient has come to. That of any other counts as zero, although older numbers are still in its
    /// memory: the first gradient overwrites them, which saves filling and adding.
    pub(super) written: BTreeSet<usize>,
}

impl Gradients {
    pub(super) fn bytes(&self) -> usize {
        self.full.iter().chain(&self.shard).chain(&self.home).map(FlatStorage::bytes).sum()
    }

    /// Forgets what has come home, or is on its way there.
    fn forget_home(&mut self) {
        (self.leaving, self.home) = (None, None);
    }

    /// Waits for what is on its way home.
    fn land(&mut self) -> Result<()> {
        if let Some(leaving) = self.leaving.take() {
            self.home = Some(FlatStorage::new(leaving.take()?)?);
        }
        Ok(())
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
        gradients.written.clear();
        gradients.forget_home();
        gradients.state = if gradients.full.is_some() { GradState::Accumulating } else { GradState::Empty };
    }

    /// Forgets the gradients of a step that is given up, and keeps their memory, unless somebody still moves them: any state → Empty.
    pub fn forget_grads(&self) {
        let gradients = &mut self.memory_mut().gradients;
        if gradients.state == GradState::Reducing {
            *gradients = Gradients::default();
        }
        gradients.written.clear();
        gradients.forget_home();
        gradients.state = GradState::Empty;
    }

    /// Frees the memory of gradients: any state → Empty.
    pub fn discard_grads(&self) {
        self.memory_mut().gradients = Gradients::default();
    }

    /// Makes room now for what is kept from step to step, that of the sum's owned elements or of all gradients: then it does not
    /// lie between memory that comes and goes.
    ///
    /// # Errors
    /// If the memory cannot be had.
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
    /// [`crate::TensorError::FlatState`] from another state; and if the number of elements differs.
    pub fn set_grads(&self, values: &FlatStorage) -> Result<()> {
        self.check(values, self.len())?;
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        self.made(&mut gradients.full, self.len())?.copy_from(values)?;
        gradients.written.extend(0..self.entries().len());
        gradients.state = GradState::Accumulating;
        Ok(())
    }

    /// Takes over the sum of gradients that others have computed, for the owned elements: any state but Reducing → Reduced.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] while they are reduced; and if the number of elements differs.
    pub fn set_owned_grads(&self, sum: FlatStorage) -> Result<()> {
        let memory = &mut *self.memory_mut();
        self.check(&sum, memory.owned.len())?;
        if memory.gradients.state == GradState::Reducing {
            return Err(self.wrong(GradState::Reducing, "take gradients over", "another state"));
        }
        memory.gradients = Gradients { shard: Some(sum), state: GradState::Reduced, ..Gradients::default() };
        Ok(())
    }

    /// Where the gradient of a parameter is to be written, or added: Empty or Accumulating → Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
    pub fn grad_destination(&self, entry: usize) -> Result<Destination> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        let full = self.made(&mut gradients.full, self.len())?;
        let array = full.narrow(self.entries()[entry].range.clone())?.array().clone();
        gradients.state = GradState::Accumulating;
        Ok(Destination { array, add: !gradients.written.insert(entry) })
    }

    /// All gradients, zero where none came; `None` if there is no memory for all of them.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] while they are reduced.
    pub fn grads(&self) -> Result<Option<FlatStorage>> {
        let memory = &mut *self.memory_mut();
        let (all, gradients) = (memory.owned == (0..self.len()), &mut memory.gradients);
        gradients.land()?;
        match gradients.state {
            GradState::Reducing => Err(self.wrong(GradState::Reducing, "show gradients", "another state")),
            GradState::Accumulating => self.settled(gradients).map(Some),
            GradState::Empty => Ok(None),
            GradState::Reduced => Ok(gradients.full.clone().or(gradients.home.clone().filter(|_| all))),
        }
    }

    /// The gradients of the owned elements, as an optimizer takes them: the sum over the ranks, or, if this rank owns
    /// everything, what there is. `None` if there are none, or the rank owns nothing.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] while they are reduced, and before it if the rank owns some elements only.
    pub fn owned_grads(&self) -> Result<Option<FlatStorage>> {
        let mut memory = self.memory_mut();
        let owned = memory.owned.clone();
        let gradients = &mut memory.gradients;
        gradients.land()?;
        match (gradients.state, gradients.home.as_ref().or(gradients.shard.as_ref())) {
            (GradState::Reduced, Some(sum)) => return Ok(Some(sum.clone())),
            (GradState::Accumulating, _) if owned != (0..self.len()) => {
                return Err(self.wrong(gradients.state, "show a rank's gradients", "Reduced"));
            }
            _ => drop(memory),
        }
        self.grads()?.map(|full| full.narrow(owned)).transpose()
    }

    /// Room for `len` gradients of another type, where these are computed: for whoever rounds them for their way to other ranks.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn room_on_the_way(&self, len: usize, dtype: DType) -> Result<FlatStorage> {
        counted_as(MemoryKind::Gradients, || FlatStorage::unwritten(len, dtype, self.place()))
    }

    /// Gives all gradients, zero where none came, to whoever sums them over the ranks: Empty or Accumulating → Reducing. If the
    /// sum is to be scattered there is room for the owned elements of it.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
    pub fn begin_reduce(&self, scatter: bool) -> Result<(FlatStorage, Option<FlatStorage>)> {
        let mut memory = self.memory_mut();
        let (owned, gradients) = (memory.owned.len(), &mut memory.gradients);
        self.require_unreduced(gradients)?;
        let full = self.settled(gradients)?;
        let shard = scatter.then(|| self.made(&mut gradients.shard, owned).cloned()).transpose()?;
        gradients.state = GradState::Reducing;
        Ok((full, shard))
    }

    /// Frees the memory of all gradients while the sum of the owned ones, which has room of its own, is still on its way: they
    /// have been encoded, or summed inside a group of ranks.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] unless they are being reduced.
    pub fn free_unreduced_grads(&self) -> Result<()> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_reducing(gradients, "free unreduced gradients")?;
        gradients.full = None;
        Ok(())
    }

    /// The sum is there: Reducing → Reduced. The memory of all gradients is kept, or freed.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state.
    pub fn end_reduce(&self, keep: bool) -> Result<()> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_reducing(gradients, "end a reduction")?;
        gradients.full.take_if(|_| !keep);
        gradients.state = GradState::Reduced;
        Ok(())
    }

    /// Begins to bring the sum of the owned elements home and frees the memory that it was computed in: Reduced → Reduced. Whoever
    /// asks for it later waits until it is there, and so does [`FlatParam::land_grads`]. Nothing happens where they are at home.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and the back end's.
    pub fn bring_grads_home(&self) -> Result<()> {
        if !self.is_offloaded() {
            return Ok(());
        }
        let memory = &mut *self.memory_mut();
        let (owned, gradients) = (memory.owned.clone(), &mut memory.gradients);
        if gradients.state != GradState::Reduced {
            return Err(self.wrong(gradients.state, "bring gradients home", "Reduced"));
        }
        let sum = match (gradients.shard.take(), gradients.full.take()) {
            (Some(shard), _) => Some(shard),
            (None, Some(full)) => Some(full.narrow(owned)?),
            (None, None) => None,
        };
        gradients.leaving =
            sum.filter(|sum| !sum.is_empty()).map(|sum| sum.begin_moving_out()).transpose()?;
        Ok(())
    }

    /// Waits until the sum has come home, if it is on its way there.
    ///
    /// # Errors
    /// The back end's.
    pub fn land_grads(&self) -> Result<()> {
        self.memory_mut().gradients.land()
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

    /// Memory for `len` elements, made if there is none yet. It is not filled with zeros: what comes first overwrites.
    fn made<'m>(&self, memory: &'m mut Option<FlatStorage>, len: usize) -> Result<&'m FlatStorage> {
        let made = match memory.take() {
            Some(made) => made,
            None => {
                counted_as(MemoryKind::Gradients, || FlatStorage::unwritten(len, self.dtype(), self.place()))?
            }
        };
        Ok(memory.insert(made))
    }

    /// All gradients, with the zeros written that are still owed.
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
