//! The loop over steps, and what follows each: reports, evaluation, samples, checkpoints.

use std::time::Instant;

use super::evaluation::{Evaluation, evaluate_run, measure_samples};
use super::run::{LoopEnd, Run};
use super::sample_kind::SampleKind;
use super::samples::write_samples;
use crate::engine::TrainError;
use crate::engine::data::Feed;
use crate::engine::distributed::{Agreed, AgreedAction, StopReason};
use phalanx_run::{Request, RunActivity};

/// The reason why no further step runs in this world.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Interruption {
    /// The run stops.
    Stop(StopReason),
    /// The world changes by this action.
    World(AgreedAction),
}

/// Refuses final measures that are not finite: such a run has not finished well.
fn check_finite(step: u64, measures: Vec<(String, f64)>) -> Result<(), TrainError> {
    match measures.into_iter().find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => {
            Err(TrainError::MeasureNotFinite { step, name: format!("test_{name}"), value })
        }
        None => Ok(()),
    }
}

impl Run<'_> {
    /// Trains to the end of the plan, until a stop, or until the world changes.
    ///
    /// All ranks can stop before each step, and before what follows it.
    pub(super) fn steps(&mut self) -> Result<LoopEnd, TrainError> {
        let (reporter, view) = self.reporting();
        reporter.open_lines(&view)?;
        let end = self.steps_of_world();
        self.reporter.close_lines();
        end
    }

    fn steps_of_world(&mut self) -> Result<LoopEnd, TrainError> {
        let mut feed = self.feed()?;
        let mut stopped = None;
        while stopped.is_none() {
            if !self.state.is_lockstep() {
                // Otherwise a lost rank may be noticed late.
                self.distributed.check()?;
            }
            if self.followed == self.state.step {
                if self.state.step >= self.env.plan.stop {
                    break;
                }
                match self.before_step()? {
                    None => {}
                    Some(Interruption::Stop(reason)) => {
                        stopped = Some(reason);
                        break;
                    }
                    Some(Interruption::World(action)) => {
                        self.write_reports()?;
                        self.settle()?;
                        return Ok(LoopEnd::World(action));
                    }
                }
                if self.changes.split.changes_at(self.state.step) {
                    feed = self.feed()?;
                }
                self.run_step(&mut feed)?;
            }
            stopped = self.after_step()?;
            self.followed = self.state.step;
        }
        self.end_steps(stopped.as_ref())
    }

    /// The batches from the next step on.
    fn feed(&self) -> Result<Feed, TrainError> {
        let part = self.changes.split.at(self.state.step);
        self.data.feed(self.env.config, &self.env.plan, &self.distributed, part, self.state.step)
    }

    /// Takes the actions that all ranks have agreed on before the next step. Returns the reason if there is no next step in this world.
    fn before_step(&mut self) -> Result<Option<Interruption>, TrainError> {
        loop {
            let observer = &mut *self.reporter.observer;
            match self.requests.before_step(self.state.step, &self.distributed, observer)? {
                None => return Ok(None),
                Some(Agreed::Stop(reason)) => return Ok(Some(Interruption::Stop(reason))),
                Some(Agreed::Action(AgreedAction::Asked(request))) => {
                    match request {
                        Request::Save => self.save_now()?,
                        Request::Pause => {
                            if let Some(reason) = self.pause()? {
                                return Ok(Some(Interruption::Stop(reason)));
                            }
                        }
                        Request::Resume | Request::Stop | Request::Leave(_) => {}
                    }
                    self.requests.finish(request);
                }
                // Too few ranks would be left: the run stops as if a user had asked for it.
                Some(Agreed::Action(AgreedAction::Leave(_)))
                    if self.distributed.data_size() <= self.distributed.roster().min_ranks() =>
                {
                    return Ok(Some(Interruption::Stop(StopReason::Asked)));
                }
                Some(Agreed::Action(action)) => return Ok(Some(Interruption::World(action))),
            }
        }
    }

    /// Runs a step and keeps its report.
    fn run_step(&mut self, feed: &mut Feed) -> Result<(), TrainError> {
        let step = self.state.step + 1;
        self.reporter.trace.begin_step(step);
        let _inside = tracing::trace_span!(target: "phalanx_trace::step", "step", step = step).entered();
        if let Some(elastic) = &mut self.changes.elastic {
            elastic.begin_step(&mut self.state, &self.distributed)?;
        }
        if let Some(text) = self.state.follow_freeze().filter(|_| self.distributed.rank() == 0) {
            self.reporter.note(text);
        }
        let unread = self.steps.run(&self.env, &self.distributed, &mut self.state, feed)?;
        if let Some(elastic) = &mut self.changes.elastic {
            elastic.end_step(&mut self.state, &self.distributed)?;
        }
        self.reporter.report_codec_verdicts(&self.distributed, &self.state)?;
        let (reporter, mut view) = self.reporting();
        reporter.add(unread, &mut view)
    }

    /// Does what follows a step. If all ranks have agreed to stop before that, returns the reason and only writes reports.
    fn after_step(&mut self) -> Result<Option<StopReason>, TrainError> {
        let step = self.state.step;
        if let Some(saved) = self.saving.poll(&self.distributed)? {
            self.report_saved(saved);
        }
        let stopped = self.requests.after_step(step, &self.distributed)?;
        // Other ranks may have done all of this before a rank was lost.
        let is_due = stopped.is_none() && self.changes.met < step;
        if is_due {
            let every = self.env.config.train.check_replicas;
            if every > 0 && step.is_multiple_of(every) {
                self.saving.check_replicas(&self.env, &self.distributed, &self.state)?;
            }
        }
        let ranks_meet = match self.state.is_lockstep() {
            // Nothing is due after a step whose results are not needed yet.
            // A run that was saved after its last step and then failed has no report, and is completed.
            true => self.reporter.has_complete() || self.env.is_last(step),
            false => {
                let meets = stopped.is_some() || self.env.do_ranks_meet(step);
                let (reporter, mut view) = self.reporting();
                reporter.write_partial(meets, &mut view)?;
                meets
            }
        };
        if !ranks_meet {
            return Ok(stopped);
        }
        let mut measures = Vec::new();
        let was_last = self.env.is_last(step);
        if is_due {
            if was_last {
                // Before what may fail.
                self.save()?;
                self.settle()?;
            }
            measures = self.evaluate_or_report(step)?;
            // If it is not written, the ranks that continue write it.
            self.reporter.evaluated = Some(Evaluation { step, measures: measures.clone() });
        }
        // The evaluation may have ended the run.
        let is_last = self.env.is_last(step);
        let (reporter, mut view) = self.reporting();
        reporter.write_complete(stopped.is_some() || is_last, measures.clone(), &mut view)?;
        if is_due {
            if is_last && !was_last {
                self.report_early_stop(step);
                self.save()?;
                self.settle()?;
            }
            self.write_samples(step)?;
            self.save_if_due(step, is_last)?;
        }
        if is_last {
            check_finite(step, measures)?;
        }
        Ok(stopped)
    }

    /// Saves after a step that is not the last one, if that is due, and marks the best checkpoint.
    fn save_if_due(&mut self, step: u64, is_last: bool) -> Result<(), TrainError> {
        let keeps = self.selection.keeps(step);
        if !is_last && (keeps || self.env.is_due(self.env.checkpoint_period(), step)) {
            self.save()?;
        }
        if keeps && self.is_first() {
            self.saving.mark_best(&self.env, &self.selection, step)?;
        }
        Ok(())
    }

    /// Measures the model after a step, if that is due. If it fails, writes the report of the step without measures: the error ends the run.
    fn evaluate_or_report(&mut self, step: u64) -> Result<Vec<(String, f64)>, TrainError> {
        let error = match self.evaluate(step) {
            Ok(measures) => return Ok(measures),
            Err(error) => error,
        };
        // After a loss the remaining ranks evaluate again.
        if !error.is_loss() {
            let is_last = self.env.is_last(step);
            let (reporter, mut view) = self.reporting();
            reporter.write_complete(is_last, Vec::new(), &mut view)?;
            if is_last && self.env.config.checkpoint.enabled && self.is_first() {
                let text = "all steps are done and saved; once the following problem is mended, --resume completes the run";
                self.reporter.note(text);
            }
        }
        Err(error)
    }

    /// Measures the model after a step, if that is due.
    fn evaluate(&mut self, step: u64) -> Result<Vec<(String, f64)>, TrainError> {
        let mut measures = Vec::new();
        if self.env.config.eval.enabled && self.env.is_due(self.env.eval_period(), step) {
            let Self { env, data, distributed, state, .. } = self;
            let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "evaluate");
            measures = span.in_scope(|| evaluate_run(env, data, distributed, state))?;
            self.select(step, &measures)?;
        }
        let is_evaluated = !measures.is_empty() || !self.env.config.eval.enabled;
        let is_judged = self.env.is_due(self.env.config.quality.every, step);
        let Self { env, data, distributed, state, quality, .. } = self;
        if let Some(quality) = quality.as_mut().filter(|_| is_judged) {
            let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "judge samples");
            measures.extend(span.in_scope(|| measure_samples(env, quality, data, distributed, state))?);
            if is_evaluated {
                self.selection.check(self.env.config, &measures)?;
            }
            self.select(step, &measures)?;
        }
        Ok(measures)
    }

    /// Compares the evaluation of a step with the best so far. Ends the run after this step if too many evaluations have not improved. All
    /// ranks call this together.
    fn select(&mut self, step: u64, measures: &[(String, f64)]) -> Result<(), TrainError> {
        self.selection.update(step, measures, &self.distributed)?;
        self.env.plan.stop = self.selection.stop(step);
        Ok(())
    }

    /// Reports that evaluations have ended the run.
    fn report_early_stop(&mut self, step: u64) {
        let text = format!("stops early after step {step}: {}", self.selection.reason());
        tracing::info!("{text}");
        if self.is_first() {
            self.reporter.note(text);
        }
    }

    /// Writes samples after a step, if they are due.
    fn write_samples(&mut self, step: u64) -> Result<(), TrainError> {
        let Self { env, data, distributed, state, .. } = self;
        // Otherwise all ranks would gather all parameters for nothing.
        let kind = SampleKind::of(&*state.training, &env.config.sample);
        let Some(kind) = kind.filter(|_| env.is_due(env.config.sample.every, step)) else { return Ok(()) };
        let path = env.samples_path(step, kind);
        let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "draw samples");
        if span.in_scope(|| write_samples(env, data, distributed, state, (kind, &path)))? {
            self.reporter.report_samples(step, kind, &self.env)?;
        }
        Ok(())
    }

    /// Writes the reports of all steps. All ranks are at the same step.
    fn write_reports(&mut self) -> Result<(), TrainError> {
        let (reporter, mut view) = self.reporting();
        reporter.write_all(&mut view)
    }

    /// Ends the steps: writes all reports, and a checkpoint if the run was interrupted.
    fn end_steps(&mut self, stopped: Option<&StopReason>) -> Result<LoopEnd, TrainError> {
        let (reporter, mut view) = self.reporting();
        reporter.write_unread(true, &mut view)?;
        reporter.write_all(&mut view)?;
        let interrupted = stopped == Some(&StopReason::Asked);
        if interrupted || self.saving.unsaved == Some(self.state.step) {
            self.save()?;
        }
        self.settle()?;
        self.saving.unsaved = None;
        self.reporter.take_broken(stopped, &self.env)?;
        Ok(LoopEnd::Through { interrupted })
    }

    /// Runs no step until users resume the run or stop it. Returns the reason of a stop.
    fn pause(&mut self) -> Result<Option<StopReason>, TrainError> {
        let (step, since) = (self.state.step, Instant::now());
        self.requests.paused = true;
        self.write_reports()?;
        // A checkpoint that was begun is complete before ranks pause.
        self.settle()?;
        self.announce(RunActivity::Paused, &format!("paused after step {step}"))?;
        let stopped = loop {
            let observer = &mut *self.reporter.observer;
            match self.requests.while_paused(step, &self.distributed, observer)? {
                None
                | Some(Agreed::Action(AgreedAction::Asked(
                    Request::Pause | Request::Stop | Request::Leave(_),
                ))) => {}
                Some(Agreed::Action(AgreedAction::Asked(Request::Resume))) => {
                    self.requests.finish(Request::Resume);
                    break None;
                }
                Some(Agreed::Action(AgreedAction::Asked(Request::Save))) => {
                    self.save_now()?;
                    self.settle()?;
                    self.requests.finish(Request::Save);
                }
                // The ranks of the next world pause again, also if another rank receives requests there.
                Some(Agreed::Action(other)) => {
                    self.requests.put_back(other);
                    return Ok(None);
                }
                Some(Agreed::Stop(reason)) => break Some(reason),
            }
        };
        self.requests.paused = false;
        let seconds = since.elapsed().as_secs_f64();
        self.announce(RunActivity::Training, &format!("goes on after a pause of {seconds:.1} s"))?;
        Ok(stopped)
    }

    fn announce(&mut self, doing: RunActivity, text: &str) -> Result<(), TrainError> {
        self.requests.announce(doing, self.state.step, text, &mut *self.reporter.observer)
    }

    /// Starts to save the state after the last step. The losses of all steps are known before: nothing is saved after one that is not
    /// finite.
    fn save_now(&mut self) -> Result<(), TrainError> {
        self.write_reports()?;
        self.save()
    }
}
