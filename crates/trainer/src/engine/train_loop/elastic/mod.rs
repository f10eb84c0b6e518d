//! Training that goes on in another world: when ranks die or leave, and when others come.
//!
//! Between two steps all ranks have the same state, of which each holds its part. When the world changes each keeps a copy of what
//! it holds of the last step that it has finished ([`Held`]), in the form in which checkpoints have it; the ranks of the new world
//! build everything anew for it, agree on the newest step of which everything is there ([`standing`]), and give each other what
//! each lacks ([`transfer`]). A step that was under way is given up, and taken again by the ranks of the new world, with the same
//! samples. Nothing is read from files.
//!
//! What is given up must leave nothing behind. Forward passes change buffers (statistics of batch norm), which are put back; and
//! where a step has several phases, the state before it is kept. Buffers are rank 0's on all ranks before anything is updated, as
//! it is theirs that are saved, so that they outlive rank 0.
//!
//! Where state is sharded a step that is given up may leave parts of it at different steps. There each rank keeps copies of what it
//! holds after each step, if its groups are replicas of each other (`hsdp`) or neighbours are to keep them, too ([`copies`]). Where
//! nobody has what a lost rank held all go on from the newest checkpoint.
//!
//! A GPU does what it was given before the host notices that a rank is lost: it updates parameters by whatever an operation that
//! was given up has left of the gradients. So each rank with a GPU waits for the end of each step, and has a copy of what it holds
//! on the host, whatever the strategy.

mod change;
mod copies;
mod standing;
mod transfer;

use std::collections::VecDeque;
use std::time::Instant;

use candle_core::Tensor;
use phalanx_sharding::Partition;

use self::copies::Copies;
use super::Run;
use super::losses::Told;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, Network};
use crate::engine::observer::StepReport;
use crate::engine::training::Task;
use phalanx_checkpoint::Held;
use phalanx_run::WorldChange;

/// Of so many steps a rank remembers what it has told of its losses: ranks are at most one step apart.
const REMEMBERED: usize = 2;

/// What a rank keeps in case that its world changes.
pub(in crate::engine::train_loop) struct Elastic<'a> {
    /// What networks are built by again.
    task: &'a Task,
    /// How the step that is under way is undone.
    undo: Option<Undo>,
    /// Steps that this rank had done when its world broke.
    reached: u64,
    /// What this rank holds of one step or of several, from when its world has broken until it goes on in another.
    held: Vec<Held>,
    /// Copies of the last steps, where state is sharded, and whether a step is under way that may have changed a part of it.
    copies: Option<Copies>,
    in_step: bool,
    /// Whether a step that is given up may have changed a part of the state: a shard, or what a GPU has.
    may_tear: bool,
    on_device: bool,
    /// Whether neighbours keep copies for each other.
    redundant: bool,
    /// Whether this rank has come to the others and has nothing yet of what they have.
    is_new: bool,
    /// The numbers of the ranks of that world.
    members: Vec<usize>,
    /// What it has told of its losses.
    told: VecDeque<Told>,
    /// The report of its last step; on ranks other than 0 without losses.
    report: Option<StepReport>,
    /// The change after which no step is done yet, and when it was noticed.
    under_way: Option<(Instant, WorldChange)>,
    /// All changes before.
    changes: Vec<WorldChange>,
    /// The longest of the times from noticing a change to the next step that was done, since one was last told.
    recovered: Option<f64>,
}

/// What a step that is given up has changed.
enum Undo {
    /// Buffers, in order.
    Buffers(Vec<Tensor>),
    /// Perhaps everything.
    All(Held),
}

impl<'a> Elastic<'a> {
    /// Nothing yet; `None` where the world does not change.
    pub(in crate::engine::train_loop) fn of(
        config: &Config,
        task: &'a Task,
        distributed: &Distributed,
    ) -> Option<Self> {
        let on_device = !distributed.device().compute().is_host();
        let is_sharded = config.train.strategy.layout.optimizer == Partition::Sharded;
        let redundant = config.elastic.redundancy > 0;
        let copied = on_device || is_sharded && (redundant || !config.has_lone_shards());
        config.elastic().map(|_| Self {
            task,
            undo: None,
            copies: copied.then(Copies::default),
            in_step: false,
            may_tear: is_sharded || on_device,
            on_device,
            redundant,
            is_new: distributed.has_joined(),
            reached: 0,
            held: Vec::new(),
            members: Vec::new(),
            told: VecDeque::new(),
            report: None,
            under_way: None,
            changes: Vec::new(),
            recovered: None,
        })
    }

    /// Seconds from noticing a change to the next step that was done: the longest since this was last asked.
    pub(in crate::engine::train_loop) fn take_recovered(&mut self) -> Option<f64> {
        self.recovered.take()
    }

    /// Whether this rank has come and does not take part yet.
    pub(in crate::engine::train_loop) fn is_new(&self) -> bool {
        self.is_new
    }

    /// All changes so far.
    pub(in crate::engine::train_loop) fn changes(&self) -> Vec<WorldChange> {
        let last = self.under_way.iter().map(|(_, change)| change.clone());
        self.changes.iter().cloned().chain(last).collect()
    }
}

impl Run<'_> {
    /// Keeps what the next step may change before it can be lost.
    pub(super) fn keep_for_undoing(&mut self) -> Result<(), TrainError> {
        self.copy_state()?;
        let phases = self.state.due().len();
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        elastic.in_step = true;
        if !elastic.may_tear {
            elastic.undo = Some(match phases {
                0 | 1 => Undo::Buffers(self.state.buffers()?),
                _ => Undo::All(self.state.held()?),
            });
        }
        Ok(())
    }

    /// The step is done, and finished once there are copies of what it has led to.
    pub(super) fn finish_step(&mut self) -> Result<(), TrainError> {
        let on_device = self.elastic.as_ref().is_some_and(|elastic| elastic.on_device);
        if on_device {
            // Before that nobody knows whether it was done with all ranks.
            self.copy_state()?;
        }
        if let Some(elastic) = &mut self.elastic {
            (elastic.undo, elastic.in_step) = (None, false);
        }
        self.copy_state()
    }

    /// Makes copies of the state between two steps, where there are to be some and there is none. Every rank calls this at the same
    /// place.
    fn copy_state(&mut self) -> Result<(), TrainError> {
        let step = self.state.step;
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        let Some(copies) = elastic.copies.as_mut().filter(|copies| !copies.has(step)) else { return Ok(()) };
        let _copying = tracing::trace_span!(target: "phalanx_trace::saving", "copy shards").entered();
        let held = self.state.held()?;
        if elastic.on_device {
            // What was copied is the step's end if nobody was lost until it was.
            self.distributed.check()?;
        }
        copies.keep(held);
        if elastic.redundant {
            copies.exchange(&self.distributed)?;
        }
        // What came from another world is not needed any more.
        elastic.held.clear();
        Ok(())
    }

    /// Bytes of copies of shards that are held.
    pub(super) fn bytes_of_copies(&self) -> u64 {
        let copies = self.elastic.as_ref().and_then(|elastic| elastic.copies.as_ref());
        copies.map_or(0, Copies::bytes)
    }

    /// Has all ranks have rank 0's buffers, before an update that ranks may finish of which others are lost.
    pub(super) fn agree_on_buffers(&self) -> Result<(), TrainError> {
        if self.elastic.is_none() {
            return Ok(());
        }
        let have_some = self.state.networks().filter(|network| !network.store().buffers().is_empty());
        have_some.into_iter().try_for_each(Network::broadcast_buffers)
    }

    /// Remembers what this rank tells of its losses.
    pub(super) fn keep_told(&mut self, told: &Told) {
        if let Some(elastic) = &mut self.elastic {
            elastic.told.push_back(told.clone());
            while elastic.told.len() > REMEMBERED {
                elastic.told.pop_front();
            }
        }
    }

    /// Remembers the report of the last step, and how long it took to come to it if it is the first one of a world.
    pub(super) fn keep_report(&mut self, report: &StepReport) {
        let Some(elastic) = &mut self.elastic else { return };
        elastic.report = Some(report.clone());
        if let Some((noticed, change)) = elastic.under_way.take() {
            let seconds = noticed.elapsed().as_secs_f64();
            tracing::info!("step {} is done {seconds:.3} s after the world changed", report.step);
            elastic.recovered = Some(elastic.recovered.map_or(seconds, |longest| longest.max(seconds)));
            elastic.changes.push(WorldChange { seconds: Some(seconds), ..change });
        }
    }
}
