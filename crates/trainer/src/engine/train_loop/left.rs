//! Going on when a worker has died: those who are left meet again, agree on where each is, and share the work anew.
//!
//! The step in which a rank noticed is taken again. Ranks may be at different steps: until the furthest is reached each takes
//! the part of the batches that it would have taken, and from that step on they share all of them. So no sample is taken twice,
//! and of the steps before it only those of the dead are missing. What follows a step, for which all meet, is begun again,
//! unless somebody has gone beyond it.
//!
//! If rank 0 has died, the lowest that is left takes over what rank 0 does for all: it writes metrics, from the last line that
//! is there on, hears users, and tells what happens.

use std::collections::BTreeSet;

use phalanx_collectives::Control;
use serde::{Deserialize, Serialize};

use super::Run;
use super::by_rank::ByRank;
use super::requests::Desk;
use crate::engine::TrainError;
use crate::engine::distributed::{Before, StopReason};
use crate::engine::observer::{Event, Observer, named};
use phalanx_run::{DeadRank, read_metrics};

/// The step from which on the others share the work of one that has died, as long as they have not agreed on it.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Where a rank was when another was lost.
#[derive(Debug, Serialize, Deserialize)]
struct Standing {
    /// Steps taken.
    step: u64,
    /// The last step of which it has done all that follows.
    followed: u64,
    /// The step of a checkpoint that was not complete.
    unsaved: Option<u64>,
    /// What it has seen evaluated after which step, if that may have to be written.
    evaluated: Option<(u64, Vec<(String, f64)>)>,
    /// What the first rank knows: up to which step metrics are written, and whether samples of the last step are missing.
    written: u64,
    lacks_samples: bool,
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
        if self.distributed.is_elastic() {
            return self.go_on_elsewhere(error, observer);
        }
        if !error.is_loss() || self.broken.is_some() || !self.distributed.outlives_a_death() {
            return Err(error);
        }
        tracing::warn!("{error}; those who are left meet again");
        loop {
            let ranks = self.distributed.data_size();
            let gone_on = self.distributed.go_on_with_those_left(self.config, self.state.step);
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
        self.stops = self.stops.take().or_else(|| stop_of(&before.control));
        for dead in &before.dead {
            let (rank, host) = (dead.rank, dead.host.clone());
            self.dead.push(DeadRank { rank, host, from_step: UNKNOWN, cause: None });
        }
        let own = self.standing()?;
        let garbled =
            |error: serde_json::Error| TrainError::Setup(format!("where ranks are is garbled: {error}"));
        let told = self.distributed.gather_text(&serde_json::to_string(&own).map_err(garbled)?)?;
        let told = told.iter().map(|told| serde_json::from_str(told)).collect::<Result<Vec<Standing>, _>>();
        let told = told.map_err(garbled)?;
        let first = told.first().unwrap_or(&own);
        // All have ended what they wrote, since all have come here.
        self.saver.clear(self.is_first());
        let until = told.iter().map(|told| told.step).max().unwrap_or(own.step);
        self.met = told.iter().map(|told| told.followed).max().unwrap_or(0);
        if first.lacks_samples && told.iter().all(|told| told.step == until) {
            // Nobody has gone beyond that step, so that all can do again what follows it.
            (self.met, self.followed) = (until - 1, until - 1);
        }
        // The first rank knows what has become complete.
        self.unsaved = first.unsaved;
        let newest = told.iter().filter_map(|told| told.evaluated.as_ref()).max_by_key(|(step, _)| *step);
        self.evaluated = newest.filter(|(step, _)| *step > first.written).cloned();
        let share = self.distributed.share();
        self.shares.change(until, share);
        if self.is_first() {
            if self.desk.is_none() {
                self.by_rank = Some(ByRank::open(self.folder, first.written, self.seconds_before)?);
                self.behind.retain(|(report, ..)| report.step > first.written);
                self.losses.begin_after(first.written);
            }
            self.keep_the_desk(first.written, observer)?;
        }
        for dead in self.dead.iter_mut().filter(|dead| dead.from_step == UNKNOWN) {
            dead.from_step = until + 1;
            let (rank, host, from_step, left) = (dead.rank, dead.host.clone(), until + 1, share.ranks);
            tracing::warn!(
                "rank {rank} on {host} died; {left} workers share its work from step {from_step} on"
            );
            observer.event(&Event::Died { rank, host, from_step, left });
        }
        self.losses.share_from(&self.distributed, until, first.written)?;
        self.state.go_on(&self.distributed, self.config, until, ranks)?;
        match &self.stops {
            Some(reason) => self.distributed.job().request_stop(reason),
            None => Ok(()),
        }
    }

    /// Where this rank is, and what it knows as the first.
    fn standing(&mut self) -> Result<Standing, TrainError> {
        let (step, is_first) = (self.state.step, self.is_first());
        let unsaved = self.saver.interrupt().or(self.unsaved);
        let written = match is_first && self.desk.is_none() {
            // Whoever takes over knows it by what is there.
            true => self.lines_until(step)?.last().map_or(0, phalanx_run::Line::step),
            false => self.losses.written(),
        };
        let lacks_samples = self.lacks_samples(step);
        let (followed, evaluated) = (self.followed, self.evaluated.clone());
        Ok(Standing { step, followed, unsaved, evaluated, written, lacks_samples })
    }

    /// Whether samples of a step are missing, on a rank that takes over from the one that was to draw them.
    pub(super) fn lacks_samples(&self, step: u64) -> bool {
        let (due, last) = (self.config.sample.every, step == self.plan.stop);
        self.is_first()
            && self.desk.is_none()
            && step > 0
            && self.state.training.draws()
            && self.plan.is_due(due, step, last)
            && !self.samples_of(step).exists()
    }

    /// The lines of metrics of steps up to one.
    pub(super) fn lines_until(&self, step: u64) -> Result<Vec<phalanx_run::Line>, TrainError> {
        let path = self.folder.metrics();
        let mut lines = if path.exists() { read_metrics(&path)? } else { Vec::new() };
        lines.retain(|line| line.step() <= step);
        Ok(lines)
    }

    /// What the first rank does for all: goes on with it, or takes it over. Metrics are written up to a step.
    pub(super) fn keep_the_desk(
        &mut self,
        written: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let meetings = self.distributed.meetings();
        match &mut self.desk {
            Some(desk) => desk.go_on(meetings, self.distributed.data_size())?,
            None => {
                let started = self.started();
                tracing::warn!(
                    "this rank takes over from rank 0: it writes metrics from step {} on",
                    written + 1
                );
                self.desk = Some(Desk::take_over(self.folder, &started, meetings, self.pauses)?);
                self.take_over_last()?;
                observer.take_over(&started);
            }
        }
        match &self.desk {
            Some(desk) => desk.ask_again(self.distributed.job()),
            None => Ok(()),
        }
    }

    /// The last losses and measures that are written, for the summary.
    pub(super) fn take_over_last(&mut self) -> Result<(), TrainError> {
        let losses = self.state.training.phases().into_iter().map(|phase| named(&phase.name, "loss"));
        let losses: BTreeSet<String> = losses.collect();
        for line in self.lines_until(self.state.step)? {
            for (name, value) in line.numbers() {
                if losses.contains(name) || name.starts_with("test_") {
                    self.last.insert(name.to_owned(), value.into());
                }
            }
        }
        Ok(())
    }
}

/// What the ranks of a world that broke had agreed to stop for, if it was what ends a run wherever it is.
pub(super) fn stop_of(control: &Control) -> Option<StopReason> {
    let reason = serde_json::from_str(&control.stop()?.reason).ok()?;
    matches!(reason, StopReason::Asked | StopReason::NotFinite { .. }).then_some(reason)
}
