//! Recovery after ranks were lost: the surviving ranks meet again, agree on the progress of each, and split the work anew.
//!
//! The step in which a rank noticed the loss is repeated. Ranks may be at different steps. Until the furthest is reached, each takes the
//! part of the batches that it would have taken; from then on the surviving ranks split all of them. So no sample is used twice, and only
//! the samples of the lost ranks are missing before. What follows a step, for which all ranks meet, is repeated, unless some rank has
//! gone beyond it.
//!
//! If rank 0 is lost, the lowest surviving rank takes over: it writes metrics after the last line, receives requests and tells the
//! observer.

use super::reporter::last_written;
use super::requests::RequestHandler;
use super::run::Run;
use super::sample_kind::SampleKind;
use super::world::{Progress, exchange};
use crate::engine::TrainError;
use crate::engine::distributed::{PreviousWorld, StopReason};
use crate::engine::observer::Event;

impl Run<'_> {
    /// Continues without the ranks that were lost, if a loss has ended the steps and the run can do without them.
    ///
    /// # Errors
    /// `error`, if it has another cause; [`TrainError::Died`].
    pub(super) fn recover(&mut self, error: TrainError) -> Result<(), TrainError> {
        if self.distributed.roster().is_elastic() {
            return self.rebuild_after(error);
        }
        if !error.is_loss() || self.reporter.broken.is_some() || !self.distributed.outlives_a_death() {
            return Err(error);
        }
        tracing::warn!("{error}; the surviving ranks meet again");
        loop {
            let ranks = self.distributed.data_size();
            let rejoined = self.distributed.rejoin(self.state.step);
            match rejoined.and_then(|before| self.continue_among_survivors(&before, ranks)) {
                Ok(()) => return Ok(()),
                // Another rank was lost in that time.
                Err(again) if again.is_loss() && self.distributed.outlives_a_death() => {
                    tracing::warn!("{again}; the surviving ranks meet once more");
                }
                // The first error says more than that ranks were lost again.
                Err(last) if last.is_loss() => return Err(error),
                Err(last) => return Err(last),
            }
        }
    }

    fn continue_among_survivors(&mut self, before: &PreviousWorld, ranks: usize) -> Result<(), TrainError> {
        self.reporter.losses.enter_world(&self.distributed, before);
        self.steps.enter_world(&self.env, &self.distributed)?;
        // Some ranks may not know what was agreed on in the broken world.
        self.requests.clear_agreed();
        self.changes.stops = self.changes.stops.take().or_else(|| StopReason::of_broken(&before.control));
        for dead in &before.lost {
            self.changes.add_dead(dead.rank, dead.host.clone());
        }
        let own = self.survivor_progress()?;
        let all = exchange(&self.distributed, &own)?;
        let first = all.first().unwrap_or(&own);
        let until = self.take_over_progress(&all, first);
        self.share_selection()?;
        let part = self.distributed.rank_batch();
        self.changes.split.change(until, part);
        if self.is_first() {
            self.lead_from(first.written)?;
        }
        for dead in self.changes.settle_dead(until + 1) {
            let (rank, host, from_step, left) = (dead.rank, dead.host, dead.from_step, part.ranks);
            tracing::warn!(
                "rank {rank} on {host} died; {left} workers share its work from step {from_step} on"
            );
            self.reporter.event(&Event::Died { rank, host, from_step, left });
        }
        self.reporter.losses.resend_from(&self.distributed, until, first.written)?;
        self.state.continue_among_survivors(&self.distributed, self.env.config, until, ranks)?;
        self.request_agreed_stop()
    }

    /// Takes over the newest comparison of evaluations of all ranks. All ranks call this together.
    pub(super) fn share_selection(&mut self) -> Result<(), TrainError> {
        self.selection.share_newest(&self.distributed)?;
        self.env.plan.stop = self.selection.stop(self.state.step);
        Ok(())
    }

    /// The progress of this rank when another was lost.
    fn survivor_progress(&mut self) -> Result<Progress, TrainError> {
        let step = self.state.step;
        let takes_over = self.is_first() && !self.requests.has_handler();
        let written = match takes_over {
            // A rank that takes over finds it in the metrics.
            true => last_written(&self.env, step)?,
            false => self.reporter.losses.written(),
        };
        Ok(self.progress(step, self.followed, written))
    }

    /// The progress of this rank at a step. Gives up the current checkpoint.
    pub(super) fn progress(&mut self, step: u64, followed: u64, written: u64) -> Progress {
        Progress {
            step,
            followed,
            unsaved: self.saving.interrupt(),
            evaluated: self.reporter.evaluated.clone(),
            written,
            lacks_samples: self.lacks_samples(step),
        }
    }

    /// Takes over the progress of all ranks. Returns the furthest step.
    fn take_over_progress(&mut self, all: &[Progress], first: &Progress) -> u64 {
        // All ranks have stopped to write checkpoints, since all are here. The first rank knows which are complete.
        self.saving.clear(self.is_first(), first.unsaved);
        let until = all.iter().map(|progress| progress.step).max().unwrap_or(first.step);
        self.changes.met = all.iter().map(|progress| progress.followed).max().unwrap_or(0);
        if first.lacks_samples && all.iter().all(|progress| progress.step == until) {
            // No rank has gone beyond that step, so all can repeat what follows it.
            (self.changes.met, self.followed) = (until - 1, until - 1);
        }
        let newest = Progress::newest_evaluation(all.iter());
        self.reporter.evaluated = newest.filter(|evaluation| evaluation.step > first.written).cloned();
        until
    }

    /// Continues as the first rank, whose metrics are written up to a step.
    fn lead_from(&mut self, written: u64) -> Result<(), TrainError> {
        if !self.requests.has_handler() {
            self.reporter.open_by_rank(&self.env, written)?;
            self.reporter.pending.forget_partial(written);
            self.reporter.losses.begin_after(written);
        }
        self.lead(written)
    }

    /// True on a rank that takes over from rank 0 if the samples of a step are missing.
    pub(super) fn lacks_samples(&self, step: u64) -> bool {
        self.is_first()
            && !self.requests.has_handler()
            && step > 0
            && self.env.is_due(self.env.config.sample.every, step)
            && SampleKind::of(&*self.state.training, &self.env.config.sample)
                .is_some_and(|kind| !self.env.samples_path(step, kind).exists())
    }

    /// Does what the first rank does for all: continues with it, or takes it over. Metrics are written up to a step.
    pub(super) fn lead(&mut self, written: u64) -> Result<(), TrainError> {
        let meetings = self.distributed.roster().meetings();
        let ranks = self.distributed.data_size();
        match self.requests.handler() {
            Some(handler) => handler.enter_world(meetings, ranks)?,
            None => {
                let started = self.started();
                tracing::warn!(
                    "this rank takes over from rank 0: it writes metrics from step {} on",
                    written + 1
                );
                let folder = self.env.folder;
                let handler = RequestHandler::take_over(folder, &started, meetings, self.requests.paused)?;
                self.requests.set_handler(handler);
                self.reporter.read_last(&self.env, &self.state)?;
                self.reporter.observer.take_over(&started);
            }
        }
        match self.requests.handler() {
            Some(handler) => handler.resend(self.distributed.job()),
            None => Ok(()),
        }
    }

    /// Requests the stop that ranks had agreed on when the world broke.
    pub(super) fn request_agreed_stop(&self) -> Result<(), TrainError> {
        match &self.changes.stops {
            Some(reason) => self.distributed.job().request_stop(reason),
            None => Ok(()),
        }
    }
}
