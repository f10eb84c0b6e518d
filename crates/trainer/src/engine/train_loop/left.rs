//! Going on when a worker has died: those who are left meet again, agree on where each is, and share the work anew.
//!
//! The step in which a rank noticed is taken again. Ranks may be at different steps: until the furthest is reached each takes
//! the part of the batches that it would have taken, and from that step on they share all of them. So no sample is taken twice,
//! and of the steps before it only those of the dead are missing. What follows a step, for which all meet, is begun again,
//! unless somebody has done with it.

use serde::{Deserialize, Serialize};

use super::Run;
use crate::engine::TrainError;
use crate::engine::distributed::Before;
use crate::engine::observer::{Event, Observer};
use crate::run::DeadRank;

/// The step from which on the others share the work of one that has died, as long as they have not agreed on it.
const UNKNOWN: u64 = u64::MAX;

/// Where a rank was when another was lost.
#[derive(Debug, Serialize, Deserialize)]
struct Standing {
    /// Steps taken.
    step: u64,
    /// The last step of which it has done all that follows.
    followed: u64,
    /// The step of a checkpoint that was not complete.
    unsaved: Option<u64>,
}

impl Run<'_> {
    /// Goes on without those who have died, if that is what has ended the steps and the run can do without them.
    ///
    /// # Errors
    /// `error`, if it has another cause; [`TrainError::Died`].
    pub(super) fn go_on_without(
        &mut self,
        error: TrainError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if !error.is_loss() || self.broken.is_some() || !self.distributed.outlives_a_death() {
            return Err(error);
        }
        tracing::warn!("{error}; those who are left meet again");
        loop {
            let ranks = self.distributed.data_size();
            let gone_on = self.distributed.go_on_with_those_left(self.config);
            match gone_on.and_then(|before| self.share_anew(&before, ranks, observer)) {
                Ok(()) => return Ok(()),
                // Somebody else has died meanwhile.
                Err(again) if again.is_loss() && self.distributed.outlives_a_death() => {
                    tracing::warn!("{again}; those who are left meet once more");
                }
                // What the loss has led to says more than that there was one.
                Err(last) if last.is_loss() => return Err(error),
                Err(last) => return Err(last),
            }
        }
    }

    fn share_anew(
        &mut self,
        before: &Before,
        ranks: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.losses.go_on(&self.distributed, before);
        // What was agreed on in the world that broke, some may not have heard.
        self.asked.clear();
        if let Some(desk) = &self.desk {
            desk.ask_again(self.distributed.job())?;
        }
        for dead in &before.dead {
            let (rank, host) = (dead.rank, dead.host.clone());
            self.dead.push(DeadRank { rank, host, from_step: UNKNOWN, cause: None });
        }
        let unsaved = self.saver.interrupt().or(self.unsaved);
        let own = Standing { step: self.state.step, followed: self.followed, unsaved };
        let garbled =
            |error: serde_json::Error| TrainError::Setup(format!("where ranks are is garbled: {error}"));
        let told = self.distributed.gather_text(&serde_json::to_string(&own).map_err(garbled)?)?;
        let told = told.iter().map(|told| serde_json::from_str(told)).collect::<Result<Vec<Standing>, _>>();
        let told = told.map_err(garbled)?;
        // All have ended what they wrote, since all have come here.
        self.saver.clear(self.is_first());
        let until = told.iter().map(|told| told.step).max().unwrap_or(own.step);
        self.met = told.iter().map(|told| told.followed).max().unwrap_or(0);
        // Rank 0 knows what has become complete.
        self.unsaved = told.first().and_then(|first| first.unsaved);
        let share = self.distributed.share();
        self.shares.change(until, share);
        for dead in self.dead.iter_mut().filter(|dead| dead.from_step == UNKNOWN) {
            dead.from_step = until + 1;
            let (rank, host, from_step, left) = (dead.rank, dead.host.clone(), until + 1, share.ranks);
            tracing::warn!(
                "rank {rank} on {host} died; {left} workers share its work from step {from_step} on"
            );
            observer.event(&Event::Died { rank, host, from_step, left });
        }
        self.losses.share_from(&self.distributed, until)?;
        self.state.go_on(&self.distributed, self.config, until, ranks)
    }
}
