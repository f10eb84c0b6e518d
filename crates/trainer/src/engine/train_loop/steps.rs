//! The steps of a run, and what follows each: telling, evaluating, sampling, saving.

use super::Run;
use super::after::{evaluate_run, judge_run, tell_saved};
use super::by_rank::ByRank;
use super::losses::Told;
use super::requests::Break;
use super::step::Taken;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::data::Feed;
use crate::engine::distributed::{Interlude, StopReason};
use crate::engine::observer::{Event, Observer, StepReport};
use phalanx_run::MetricsWriter;

/// How the steps of a world have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The run has come to its last step, or was interrupted.
    Through { interrupted: bool },
    /// It goes on in another world, for this reason.
    World(Interlude),
}

impl Run<'_> {
    /// Trains to the end of the plan, until a stop is asked for, or until the world is to be another.
    ///
    /// Each step is a point before which all ranks can stop, and what follows it is another.
    pub(super) fn steps(&mut self, observer: &mut dyn Observer) -> Result<Ended, TrainError> {
        let mut metrics = None;
        if self.is_first() {
            let opened = MetricsWriter::open(&self.folder.metrics(), self.state.step)?;
            // Those who go on without others, or have taken over, open it again, and know the rest.
            if self.distributed.meetings() == 0 {
                self.seconds_before =
                    opened.last().and_then(|line| line.number("seconds")).unwrap_or_default();
                if !self.state.is_lockstep() {
                    self.by_rank = Some(ByRank::open(self.folder, self.state.step, self.seconds_before)?);
                }
            }
            metrics = Some(opened);
        }
        let mut feed = self.feed()?;
        let mut stopped = None;
        while stopped.is_none() {
            if !self.state.is_lockstep() {
                // Whatever else would notice it may come late.
                self.distributed.check()?;
            }
            if self.followed == self.state.step {
                if self.state.step >= self.plan.stop {
                    break;
                }
                match self.begin_step(metrics.as_mut(), observer)? {
                    None => {}
                    Some(Break::Stop(reason)) => {
                        stopped = Some(reason);
                        break;
                    }
                    // Without it too few would be left: the run stops as if all had been asked to.
                    Some(Break::World(Interlude::Leave(_)))
                        if self.distributed.data_size() <= self.distributed.least() =>
                    {
                        stopped = Some(StopReason::Asked);
                        break;
                    }
                    Some(Break::World(reason)) => {
                        self.tell_of_all_taken(metrics.as_mut(), observer)?;
                        self.settle(observer)?;
                        return Ok(Ended::World(reason));
                    }
                }
                if self.shares.changes_at(self.state.step) {
                    feed = self.feed()?;
                }
                if let Some(traced) = &self.traced {
                    traced.before_step(self.state.step + 1);
                }
                let span =
                    tracing::trace_span!(target: "phalanx_trace::step", "step", step = self.state.step + 1);
                let _inside = span.entered();
                self.keep_for_undoing()?;
                let taken = self.step(&mut feed)?;
                self.finish_step()?;
                self.take_note(taken, metrics.as_mut(), observer)?;
            }
            stopped = self.follow(metrics.as_mut(), observer)?;
            self.followed = self.state.step;
        }
        self.tell_of_last(true, metrics.as_mut(), observer)?;
        self.tell_of_all_taken(metrics.as_mut(), observer)?;
        let interrupted = stopped == Some(StopReason::Asked);
        if interrupted || self.unsaved == Some(self.state.step) {
            self.save(self.state.step, observer)?;
        }
        self.settle(observer)?;
        self.unsaved = None;
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        if let Some(StopReason::NotFinite { step, phase, loss }) = stopped {
            let loss = loss.parse().unwrap_or(f64::NAN);
            return Err(TrainError::NotFinite { step, phase, loss, elsewhere: true });
        }
        Ok(Ended::Through { interrupted })
    }

    /// The batches from the next step on.
    fn feed(&self) -> Result<Feed, TrainError> {
        let share = self.shares.at(self.state.step);
        self.data.feed(self.config, &self.plan, &self.distributed, share, self.state.step)
    }

    /// Keeps the report of a step that was just taken until it is told.
    fn take_note(
        &mut self,
        taken: Taken,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (step, last) = (self.state.step, self.state.step == self.plan.stop);
        self.tell_of_codecs(observer)?;
        // What a device computes is read when it has the next step to do, unless something follows that wants it now, or the step's
        // end was waited for anyway: should a rank be lost, nobody else could tell of the step.
        self.tell_of_last(false, metrics, observer)?;
        let is_over = self.place.is_host() || self.elastic.is_some();
        if !is_over && !self.is_something_due(step, last) {
            self.taken = Some(taken);
            return Ok(());
        }
        let (report, phases) = self.read(taken)?;
        let due = self.is_line_due(step, last);
        self.keep_report(&report);
        match self.state.is_lockstep() {
            true => self.untold = Some((report, due)),
            false => self.behind.push_back((report, phases, due)),
        }
        Ok(())
    }

    /// Does what follows a step. If all have agreed to stop before that: why; then only telling is done.
    fn follow(
        &mut self,
        mut metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<Option<StopReason>, TrainError> {
        let (step, last) = (self.state.step, self.state.step == self.plan.stop);
        if let Some(saved) = self.saver.look(&self.distributed)? {
            tell_saved(observer, saved);
        }
        let stopped = self.begin_following()?;
        if stopped.is_none() && self.met < step {
            // Before anything is saved of what may be wrong.
            self.check_replicas()?;
        }
        let follows = match self.state.is_lockstep() {
            // Of a step that nobody has read yet nothing is due.
            true => self.untold.is_some(),
            false => {
                let meets = stopped.is_some() || self.do_ranks_meet(step, last);
                self.tell_of_those_behind(meets, metrics.as_deref_mut(), observer)?;
                meets
            }
        };
        if !follows {
            return Ok(stopped);
        }
        // Whoever interrupts wants the checkpoint and nothing else. Others may have done all of this before a rank was lost.
        let meets = stopped.is_none() && self.met < step;
        let eval = &self.config.eval;
        let mut evaluated = Vec::new();
        if meets && eval.enabled && self.plan.is_due(eval.every, step, last) {
            let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "evaluate");
            evaluated = span.in_scope(|| evaluate_run(self))?;
        }
        if meets && self.plan.is_due(self.config.quality.every, step, last) {
            let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "judge samples");
            evaluated.extend(span.in_scope(|| judge_run(self))?);
        }
        if meets {
            // Should it not come to be written, it is written by whoever goes on.
            self.evaluated = Some((step, evaluated.clone()));
        }
        if let Some((report, due)) = self.untold.take() {
            self.tell(report, due || stopped.is_some(), evaluated, metrics, observer)?;
        }
        if meets {
            self.after_step(step, last, observer)?;
        }
        Ok(stopped)
    }

    /// Tells, on rank 0, where codecs were found to pay, once that is decided.
    fn tell_of_codecs(&self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        for network in self.state.networks().filter(|network| network.is_learnt() && self.is_first()) {
            for verdict in network.parallel()?.codec_verdicts() {
                let whose =
                    if network.name().is_empty() { String::new() } else { format!("{}: ", network.name()) };
                tracing::info!("{whose}{verdict}");
                observer.event(&Event::Note(format!("{whose}{verdict}")));
            }
        }
        Ok(())
    }

    /// Tells of steps of which all ranks have told their losses, the oldest first. If all ranks meet now, waits for all losses
    /// and leaves the newest step, completed, to whoever tells of it.
    fn tell_of_those_behind(
        &mut self,
        meets: bool,
        mut metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if !self.is_first() {
            // Others tell of them; what is not known to be told may yet be this rank's to tell.
            let written = match self.distributed.may_outlive_a_death() {
                true => self.losses.hear_written(&self.distributed)?,
                false => u64::MAX,
            };
            self.behind.retain(|(report, ..)| report.step > written);
            return Ok(());
        }
        while let Some((report, phases, _)) = self.behind.front() {
            let (step, phases) = (report.step, phases.clone());
            let Some(told) = self.hear_losses(step, meets)? else { return Ok(()) };
            let Some((mut report, _, due)) = self.behind.pop_front() else { return Ok(()) };
            if let Some(by_rank) = &mut self.by_rank {
                let of_step: Vec<_> =
                    phases.iter().map(|phase| self.state.training.phases()[*phase]).collect();
                by_rank.write(step, &of_step, &told)?;
            }
            self.take_losses(&mut report, &phases, Some(&told))?;
            if meets && self.behind.is_empty() {
                self.untold = Some((report, due));
                return Ok(());
            }
            self.tell(report, due, Vec::new(), metrics.as_deref_mut(), observer)?;
        }
        Ok(())
    }

    /// What all ranks have told of a step, the oldest of which not all was known, waiting for it if so wanted.
    pub(super) fn hear_losses(&mut self, step: u64, wait: bool) -> Result<Option<Vec<Told>>, TrainError> {
        let _waiting = tracing::trace_span!(target: "phalanx_trace::waiting", "wait for losses").entered();
        self.losses.bring_together(&self.distributed, step, wait)
    }

    /// Whether all ranks come together after this step, whoever is behind.
    fn do_ranks_meet(&self, step: u64, last: bool) -> bool {
        let Config { eval, quality, sample, checkpoint, .. } = self.config;
        let every = [quality.every, sample.every, checkpoint.every];
        eval.enabled && self.plan.is_due(eval.every, step, last)
            || every.into_iter().any(|every| self.plan.is_due(every, step, last))
    }

    /// Tells of all steps that were taken. All ranks have come to the same point, so all tell of the same steps.
    pub(super) fn tell_of_all_taken(
        &mut self,
        mut metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.tell_of_last(false, metrics.as_deref_mut(), observer)?;
        if !self.state.is_lockstep() {
            self.tell_of_those_behind(true, metrics.as_deref_mut(), observer)?;
        }
        match self.untold.take() {
            Some((newest, due)) => self.tell(newest, due, Vec::new(), metrics, observer),
            None => Ok(()),
        }
    }

    /// Reads the step before the one that was just queued, if nobody has, and tells of it.
    fn tell_of_last(
        &mut self,
        due: bool,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(taken) = self.taken.take() else { return Ok(()) };
        let (report, phases) = self.read(taken)?;
        if self.state.is_lockstep() {
            return self.tell(report, due, Vec::new(), metrics, observer);
        }
        self.behind.push_back((report, phases, due));
        Ok(())
    }

    /// Whether a step has a line of metrics.
    pub(super) fn is_line_due(&self, step: u64, last: bool) -> bool {
        step == 1 || self.plan.is_due(self.config.log.every, step, last)
    }

    /// Whether anything is done between this step and the next for which its losses must be known: nothing is told or saved of a
    /// step whose loss is not finite.
    fn is_something_due(&self, step: u64, last: bool) -> bool {
        self.is_line_due(step, last) || self.do_ranks_meet(step, last)
    }

    /// Tells of a step, on rank 0, and writes its line if it is due, something was evaluated, or networks have collapsed. A loss
    /// that is not finite is told as the error that ends the run.
    fn tell(
        &mut self,
        report: StepReport,
        due: bool,
        mut evaluated: Vec<(String, f64)>,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if self.broken.is_some() {
            return Ok(());
        }
        let before = self.evaluated.take_if(|(after, _)| *after == report.step);
        if evaluated.is_empty() {
            evaluated = before.map(|(_, measures)| measures).unwrap_or_default();
        }
        let collapsed = self.watch.see(&report.phases);
        for problem in &collapsed {
            let step = report.step;
            tracing::warn!("step {step}: {problem}");
            observer.event(&Event::Collapsed { step, problem: problem.clone() });
        }
        match metrics {
            Some(metrics) if due || !evaluated.is_empty() || !collapsed.is_empty() => {
                self.log(report, evaluated, collapsed, metrics, observer)
            }
            _ => {
                observer.step(&report, false);
                Ok(())
            }
        }
    }
}
