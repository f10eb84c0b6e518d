//! The state that a rank keeps in case its world changes.
//!
//! A step that is given up must leave nothing behind. Forward passes change buffers (batch norm statistics), which are restored. If a
//! step has several phases, the whole state before it is kept. All ranks take rank 0's buffers before each update, because these are
//! saved: they survive the loss of rank 0.
//!
//! If state is sharded, a step that is given up may leave its parts at different steps. Each rank then copies its part after each step:
//! for itself if its groups are replicas of each other (`hsdp`), for its neighbour too if `elastic.redundancy = 1`.
//!
//! A GPU continues until the host notices that a rank is lost, and may update parameters by incomplete gradients. Each rank with a GPU
//! therefore waits for the end of each step and copies its state to the host, under every strategy.

use candle_core::Tensor;
use phalanx_sharding::Partition;

use super::copies::Copies;
use crate::engine::TrainError;
use crate::engine::distributed::{AgreedAction, Distributed};
use crate::engine::train_loop::state::TrainState;
use crate::engine::training::Task;
use phalanx_checkpoint::StateSnapshot;
use phalanx_config::Config;

/// The state that a rank keeps in case its world changes.
pub(in crate::engine::train_loop) struct Elastic<'a> {
    /// Builds the networks again.
    task: &'a Task,
    /// Undoes the current step.
    undo: Option<Undo>,
    /// Steps that this rank had done when its world broke.
    reached: u64,
    /// The state of this rank after one step or several, between two worlds.
    snapshots: Vec<StateSnapshot>,
    /// Copies of the last steps, if a step can change the state in part.
    copies: Option<Copies>,
    /// True while a step runs that may have changed a part of the state.
    in_step: bool,
    /// True if a step that is given up may have changed a part of the state: a shard, or arrays of a GPU.
    may_tear: bool,
    on_device: bool,
    /// True if neighbours keep copies for each other.
    redundant: bool,
    /// True if this rank has joined and has no state yet.
    is_new: bool,
    /// The numbers of the ranks of the last world.
    members: Vec<usize>,
}

/// The state before a step.
enum Undo {
    /// Buffers, in order.
    Buffers(Vec<Tensor>),
    /// Everything.
    All(StateSnapshot),
}

impl<'a> Elastic<'a> {
    /// Creates the record of a rank; `None` if ranks cannot join or leave.
    pub(super) fn of(config: &Config, task: &'a Task, distributed: &Distributed) -> Option<Self> {
        let on_device = !distributed.device().compute().is_host();
        let is_sharded = config.train.strategy.layout.optimizer == Partition::Sharded;
        let redundant = config.elastic.redundancy > 0;
        let copied = on_device || is_sharded && (redundant || !config.has_lone_shards());
        config.elastic().map(|_| Self {
            task,
            undo: None,
            reached: 0,
            snapshots: Vec::new(),
            copies: copied.then(Copies::default),
            in_step: false,
            may_tear: is_sharded || on_device,
            on_device,
            redundant,
            is_new: distributed.roster().has_joined(),
            members: Vec::new(),
        })
    }

    /// The task of the run.
    pub(in crate::engine::train_loop) fn task(&self) -> &'a Task {
        self.task
    }

    /// True if this rank has joined and does not train yet.
    pub(in crate::engine::train_loop) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Steps that this rank had done when its world broke.
    pub(in crate::engine::train_loop) fn reached(&self) -> u64 {
        self.reached
    }

    /// The state of this rank after one step or several, between two worlds.
    pub(in crate::engine::train_loop) fn snapshots(&self) -> &[StateSnapshot] {
        &self.snapshots
    }

    /// The numbers of the ranks of the last world.
    pub(in crate::engine::train_loop) fn members(&self) -> &[usize] {
        &self.members
    }

    /// Bytes of all copies.
    pub(in crate::engine::train_loop) fn copy_bytes(&self) -> u64 {
        self.copies.as_ref().map_or(0, Copies::bytes)
    }

    /// Keeps the state that the next step may change. All ranks call this together.
    pub(in crate::engine::train_loop) fn begin_step(
        &mut self,
        state: &mut TrainState,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        self.copy_state(state, distributed)?;
        self.in_step = true;
        if !self.may_tear {
            self.undo = Some(match state.due().len() {
                0 | 1 => Undo::Buffers(state.buffers()?),
                _ => Undo::All(state.snapshot()?),
            });
        }
        Ok(())
    }

    /// Ends a step, which is finished once its state is copied. All ranks call this together.
    pub(in crate::engine::train_loop) fn end_step(
        &mut self,
        state: &mut TrainState,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        if self.on_device {
            // Before that, a rank may have been lost unnoticed.
            self.copy_state(state, distributed)?;
        }
        (self.undo, self.in_step) = (None, false);
        self.copy_state(state, distributed)
    }

    /// Copies the state between two steps, if copies are wanted and this one is missing. All ranks call this together.
    fn copy_state(&mut self, state: &mut TrainState, distributed: &Distributed) -> Result<(), TrainError> {
        let step = state.step;
        let Some(copies) = self.copies.as_mut().filter(|copies| !copies.has(step)) else { return Ok(()) };
        let _copying = tracing::trace_span!(target: "phalanx_trace::saving", "copy shards").entered();
        let snapshot = state.snapshot()?;
        if self.on_device {
            // The copy is the end of the step if no rank was lost before it was made.
            distributed.check()?;
        }
        copies.keep(snapshot);
        if self.redundant {
            copies.exchange(distributed)?;
        }
        // State from another world is not needed any more.
        self.snapshots.clear();
        Ok(())
    }

    /// Copies shards to neighbours before a rank leaves, if no other rank has its shard. All ranks call this together.
    pub(in crate::engine::train_loop) fn hand_over(
        &mut self,
        action: &AgreedAction,
        config: &Config,
        state: &mut TrainState,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        let is_lone = config.has_lone_shards() && matches!(action, AgreedAction::Leave(_));
        if !is_lone || self.redundant {
            return Ok(());
        }
        let mut copies = Copies::default();
        copies.keep(state.snapshot()?);
        copies.exchange(distributed)?;
        match &mut self.copies {
            Some(own) => *own = copies,
            None => self.snapshots = copies.versions(),
        }
        Ok(())
    }

    /// Keeps the state of this rank after the last steps that it finished. The world is over.
    pub(in crate::engine::train_loop) fn hold(
        &mut self,
        state: &mut TrainState,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        if self.is_new {
            // Its initial values are of no use.
            self.members = distributed.roster().numbers().to_vec();
            return Ok(());
        }
        if !self.may_tear && !self.snapshots.is_empty() {
            return Ok(());
        }
        self.members = distributed.roster().numbers().to_vec();
        self.reached = state.step;
        let in_step = std::mem::take(&mut self.in_step);
        match self.undo.take() {
            Some(Undo::All(snapshot)) => {
                self.snapshots = vec![snapshot];
                return Ok(());
            }
            Some(Undo::Buffers(copies)) => state.set_buffers(&copies)?,
            None => {}
        }
        let mut versions = self.copies.as_ref().map(Copies::versions).unwrap_or_default();
        let is_known =
            |step: u64, versions: &[StateSnapshot]| versions.iter().any(|snapshot| snapshot.step == step);
        // State from the world before may be all there is, if this world broke before its first step.
        for snapshot in std::mem::take(&mut self.snapshots) {
            if !is_known(snapshot.step, &versions) {
                versions.push(snapshot);
            }
        }
        // A step that is given up may have changed a part of a shard, but nothing that is replicated.
        if !(is_known(state.step, &versions) || self.may_tear && in_step) {
            versions.push(state.snapshot()?);
        }
        self.snapshots = versions;
        Ok(())
    }

    /// Ends the change of the world: this rank trains again.
    pub(in crate::engine::train_loop) fn enter_world(&mut self) {
        self.is_new = false;
        // Shards from the last world are needed until there are copies of this one.
        match &mut self.copies {
            Some(copies) => copies.clear(),
            None => self.snapshots.clear(),
        }
    }
}
