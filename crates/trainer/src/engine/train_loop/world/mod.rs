//! Worlds that change while training goes on: ranks are lost, leave or join.
//!
//! Between two steps all ranks have the same state, of which each holds its part. When the world changes, each rank keeps a copy of its
//! part after the last step that it finished, in the form of a checkpoint ([`elastic`]). The ranks of the new world build everything
//! anew, agree on the newest step whose state is complete ([`status`]), and send each other the missing parts ([`transfer`]). An
//! interrupted step is given up and repeated with the same samples. Nothing is read from files.
//!
//! If no surviving rank has a lost part, all go back to the newest checkpoint.

mod change_log;
mod copies;
mod elastic;
mod status;
mod transfer;

use crate::engine::distributed::{BatchSplit, Distributed, StopReason};
use crate::engine::training::Task;
use phalanx_run::{DeadRank, LeftRank};

pub(super) use change_log::ChangeLog;
pub(super) use elastic::Elastic;
pub(super) use status::{CommonStep, Progress, RankStatus, exchange, newest_common_step, reports_of};
pub(super) use transfer::gather_state;

use super::environment::Environment;

/// The first step without a lost rank, until the others have agreed on it.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Changes of the world, and the state that a rank keeps for them.
pub(in crate::engine::train_loop) struct WorldChanges<'a> {
    /// Ranks that were lost.
    pub(super) dead: Vec<DeadRank>,
    /// Ranks that left on request.
    pub(super) left: Vec<LeftRank>,
    /// The numbers of ranks that all ranks have agreed to let leave.
    pub(super) leaving: Vec<usize>,
    /// The number of times since the last step that waiting processes were invited in place of lost ranks.
    pub(super) invitations: usize,
    /// State for other worlds; none if ranks cannot join or leave.
    pub(super) elastic: Option<Elastic<'a>>,
    /// The last step whose evaluation, samples and checkpoint other ranks had completed when a rank was lost.
    pub(super) met: u64,
    /// The reason to stop that all had agreed on when the world broke.
    pub(super) stops: Option<StopReason>,
    /// This rank's part of the batches.
    pub(super) split: BatchSplit,
    pub(super) log: ChangeLog,
}

impl<'a> WorldChanges<'a> {
    /// Creates the record of a rank in its first world.
    pub(super) fn new(env: &Environment<'_>, task: &'a Task, distributed: &Distributed) -> Self {
        Self {
            dead: Vec::new(),
            left: Vec::new(),
            leaving: Vec::new(),
            invitations: 0,
            elastic: Elastic::of(env.config, task, distributed),
            met: 0,
            stops: None,
            split: BatchSplit::new(distributed.rank_batch()),
            log: ChangeLog::default(),
        }
    }

    /// Adds a rank that was lost.
    pub(super) fn add_dead(&mut self, rank: usize, host: String) {
        self.dead.push(DeadRank { rank, host, from_step: UNKNOWN, cause: None });
    }

    /// Sets the first step without the ranks that were lost last, counted from 1. Returns these ranks.
    pub(super) fn settle_dead(&mut self, from_step: u64) -> Vec<DeadRank> {
        let unknown = self.dead.iter_mut().filter(|dead| dead.from_step == UNKNOWN);
        let settle = |dead: &mut DeadRank| {
            dead.from_step = from_step;
            dead.clone()
        };
        unknown.map(settle).collect()
    }

    /// Adds a rank of the last world that is missing in this one: as left if all had agreed on that, else as lost.
    pub(super) fn add_missing(&mut self, rank: usize, host: String) {
        let is_known = self.dead.iter().any(|dead| dead.rank == rank);
        if is_known || self.left.iter().any(|left| left.rank == rank) {
            return;
        }
        if self.leaving.contains(&rank) {
            self.left.push(LeftRank { rank, host, from_step: UNKNOWN });
        } else {
            self.add_dead(rank, host);
        }
    }

    /// Sets the first step without the ranks that left last, counted from 1. Returns these ranks.
    pub(super) fn settle_left(&mut self, from_step: u64) -> Vec<LeftRank> {
        let unknown = self.left.iter_mut().filter(|left| left.from_step == UNKNOWN);
        let settle = |left: &mut LeftRank| {
            left.from_step = from_step;
            left.clone()
        };
        unknown.map(settle).collect()
    }

    /// True if this rank has joined and does not train yet.
    pub(super) fn is_new(&self) -> bool {
        self.elastic.as_ref().is_some_and(Elastic::is_new)
    }
}
