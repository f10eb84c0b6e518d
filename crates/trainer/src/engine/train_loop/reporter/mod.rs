//! Reports: measures steps, gathers their losses, writes metrics and tells the observer.

mod by_rank;
mod hyperparameters;
mod line;
mod losses;
mod pending;
mod range_test;
mod read;
mod resources;
mod summary;
mod trace;
mod write;

use std::collections::VecDeque;

use serde_json::{Map, Value};

use self::by_rank::LossesByRank;
pub(super) use self::losses::LossGatherer;
use self::pending::{CompleteReport, PartialReport, PendingStep, PendingSteps};
use self::range_test::RangeTest;
pub use self::range_test::has_diverged;
use self::resources::Resources;
pub(super) use self::trace::{RunTrace, prepare, write_partial};
pub(super) use self::write::{last_evaluated, last_written, lines_until};
use super::environment::Environment;
use super::evaluation::Evaluation;
use super::meter::Meter;
use super::rank_report::RankReport;
use super::selection::Selection;
use super::state::TrainState;
use super::step::UnreadStep;
use super::world::WorldChanges;
use crate::engine::checkpoint::{Saved, saved_step};
use crate::engine::distributed::{Distributed, StopReason};
use crate::engine::observer::{Event, Observer};
use crate::engine::training::Phase;
use crate::engine::watch::Watch;
use crate::engine::{StepReport, TrainError};
use phalanx_run::{EventFile, MetricsWriter};

/// The number of steps whose reports a rank remembers: ranks are at most one step apart.
const REMEMBERED: usize = 2;

/// Measures steps, gathers their losses on rank 0, and writes metrics there.
pub(in crate::engine::train_loop) struct Reporter {
    pub(super) observer: Box<dyn Observer>,
    /// The metrics file, on rank 0 while steps run.
    lines: Option<MetricsWriter>,
    /// The TensorBoard file of this process, once it has a line.
    tensorboard: Option<EventFile>,
    /// The losses of each rank, on rank 0 if ranks do not step together.
    by_rank: Option<LossesByRank>,
    pub(super) losses: LossGatherer,
    pub(super) pending: PendingSteps,
    /// The last reports, if ranks may join or leave.
    recent: Option<RecentReports>,
    pub(super) meter: Meter,
    /// The last evaluation, until it is written.
    pub(super) evaluated: Option<Evaluation>,
    watch: Watch,
    /// The losses of a range test, if the run is one.
    range_test: Option<RangeTest>,
    /// The last values of all metrics, for the summary.
    last: Map<String, Value>,
    resources: Resources,
    pub(super) trace: RunTrace,
    /// On rank 0, the reason why the run cannot continue: a loss is not finite.
    pub(super) broken: Option<TrainError>,
}

/// The last reports of this rank.
#[derive(Debug, Default)]
struct RecentReports {
    own: VecDeque<RankReport>,
    /// The report of the last step; without losses on ranks other than 0.
    last: Option<StepReport>,
}

/// The parts of a run that reports are made of.
pub(super) struct RunView<'r, 'a> {
    pub(super) env: &'r Environment<'a>,
    pub(super) distributed: &'r Distributed,
    pub(super) state: &'r mut TrainState,
    pub(super) changes: &'r mut WorldChanges<'a>,
    pub(super) schedule: &'r dyn super::schedule::MicroBatchSchedule,
    pub(super) selection: &'r Selection,
}

impl Reporter {
    /// Creates the reporter of a rank.
    pub(super) fn new(
        env: &Environment<'_>,
        distributed: &Distributed,
        phases: Vec<&Phase>,
        observer: Box<dyn Observer>,
    ) -> Self {
        Self {
            observer,
            lines: None,
            tensorboard: None,
            by_rank: None,
            losses: LossGatherer::default(),
            pending: PendingSteps::default(),
            recent: env.is_elastic().then(RecentReports::default),
            meter: Meter::default(),
            evaluated: None,
            watch: Watch::new(&env.config.watch, phases),
            range_test: RangeTest::of(env.config),
            last: Map::new(),
            resources: Resources::of(distributed),
            trace: RunTrace::default(),
            broken: None,
        }
    }

    /// Tells the observer.
    pub(super) fn event(&mut self, event: &Event) {
        self.observer.event(event);
    }

    /// Sends a message to the user.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.event(&Event::Note(text.into()));
    }

    /// Reports a completed checkpoint.
    pub(super) fn report_saved(&mut self, saved: Saved) {
        let Saved { step, path, stalled } = saved;
        self.event(&Event::Saved { step, path, stalled });
    }

    /// Starts to sample the resources that this rank uses.
    pub(super) fn start_sampling(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
        step: u64,
    ) -> Result<(), TrainError> {
        let seconds = self.resources.start(env, distributed, step)?;
        self.meter.set_seconds_before(seconds);
        Ok(())
    }

    /// Opens the metrics on rank 0, for the steps of a world.
    pub(super) fn open_lines(&mut self, view: &RunView<'_, '_>) -> Result<(), TrainError> {
        self.lines = None;
        let (env, step) = (view.env, view.state.step);
        if view.distributed.rank() > 0 {
            return Ok(());
        }
        let mut opened = MetricsWriter::open(&env.folder.metrics(), step)?;
        for damaged in opened.take_damaged() {
            tracing::warn!("metrics.jsonl, {damaged}");
            self.note(format!("metrics.jsonl, {damaged}; the line is left out"));
        }
        // In later worlds the rest is known.
        if view.distributed.roster().meetings() == 0 {
            let last = opened.last().and_then(|line| line.number("seconds"));
            self.meter.set_seconds_before(last.unwrap_or_default());
            if !view.state.is_lockstep() {
                self.open_by_rank(env, step)?;
            }
        }
        self.lines = Some(opened);
        Ok(())
    }

    /// Closes the metrics: the steps of a world have ended.
    pub(super) fn close_lines(&mut self) {
        self.lines = None;
    }

    /// Opens the file of the losses of each rank, after `step` steps.
    pub(super) fn open_by_rank(&mut self, env: &Environment<'_>, step: u64) -> Result<(), TrainError> {
        self.by_rank = Some(LossesByRank::open(env.folder, step, self.meter.seconds_before())?);
        Ok(())
    }

    /// Adds the step that has just run.
    pub(super) fn add(&mut self, unread: UnreadStep, view: &mut RunView<'_, '_>) -> Result<(), TrainError> {
        let step = unread.report.step;
        // Results of a device are read when it has the next step to do, unless they are needed now or the end of the step was waited
        // for anyway: if a rank is lost, no other could report the step.
        self.write_unread(false, view)?;
        let is_done = view.env.device.is_host() || view.env.is_elastic();
        if !is_done && !view.env.needs_losses(step) {
            self.pending.push(PendingStep::Unread(unread));
            return Ok(());
        }
        let open = self.read(unread, view, view.env.is_logged(step))?;
        if let Some(recent) = &mut self.recent {
            recent.last = Some(open.report.clone());
            view.changes.log.end(step);
        }
        self.pending.push(match view.state.is_lockstep() {
            true => PendingStep::Complete(open.into()),
            false => PendingStep::Partial(open),
        });
        Ok(())
    }

    /// Reads the step before the last, if it is unread, and writes its report; with a line of metrics if `is_logged`.
    pub(super) fn write_unread(
        &mut self,
        is_logged: bool,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        let Some(unread) = self.pending.take_unread() else { return Ok(()) };
        let open = self.read(unread, view, is_logged)?;
        if view.state.is_lockstep() {
            return self.write(open.into(), Vec::new(), view);
        }
        self.pending.push(PendingStep::Partial(open));
        Ok(())
    }

    /// Writes the reports whose losses have arrived from all ranks, the oldest first. If all ranks meet, waits for the losses of all
    /// steps and leaves the newest report for [`Reporter::write_complete`].
    pub(super) fn write_partial(
        &mut self,
        meets: bool,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        let distributed = view.distributed;
        if distributed.rank() > 0 {
            // Rank 0 writes them. This rank may have to write those that rank 0 has not.
            let written = match distributed.roster().may_outlive_a_death() {
                true => self.losses.receive_written(distributed)?,
                false => u64::MAX,
            };
            self.pending.forget_partial(written);
            return Ok(());
        }
        while let Some(step) = self.pending.partial_step() {
            let Some(reports) = self.gather_losses(step, meets, distributed)? else { return Ok(()) };
            let Some(PartialReport { mut report, phases, is_logged }) = self.pending.take_partial() else {
                return Ok(());
            };
            if let Some(by_rank) = &mut self.by_rank {
                by_rank.write(step, &view.state.phases_at(&phases), &reports)?;
            }
            self.fill_in_losses(&mut report, &phases, Some(&reports), view.state, distributed)?;
            let complete = CompleteReport { report, is_logged };
            if meets && !self.pending.has_partial() {
                self.pending.complete(complete);
                return Ok(());
            }
            self.write(complete, Vec::new(), view)?;
        }
        Ok(())
    }

    /// Writes the newest complete report, if there is one, with the measures of an evaluation.
    pub(super) fn write_complete(
        &mut self,
        is_logged: bool,
        evaluated: Vec<(String, f64)>,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        let Some(complete) = self.pending.take_complete() else {
            return self.amend(view.state.step, evaluated, view);
        };
        let is_logged = complete.is_logged || is_logged;
        self.write(CompleteReport { is_logged, ..complete }, evaluated, view)
    }

    /// True if a report is complete and not written.
    pub(super) fn has_complete(&self) -> bool {
        self.pending.has_complete()
    }

    /// Writes the reports of all steps. All ranks are at the same step.
    pub(super) fn write_all(&mut self, view: &mut RunView<'_, '_>) -> Result<(), TrainError> {
        self.write_unread(false, view)?;
        if !view.state.is_lockstep() {
            self.write_partial(true, view)?;
        }
        self.write_complete(false, Vec::new(), view)
    }

    /// Records why a stop was agreed on, on the rank that does not know yet: a loss that is not finite.
    pub(super) fn take_broken(
        &mut self,
        stopped: Option<&StopReason>,
        env: &Environment<'_>,
    ) -> Result<(), TrainError> {
        if let Some(mut broken) = self.broken.take() {
            if let TrainError::NotFinite { saved, .. } = &mut broken {
                *saved = saved_step(env.folder);
            }
            return Err(broken);
        }
        if let Some(StopReason::NotFinite { step, phase, loss }) = stopped {
            let (step, phase, loss) = (*step, phase.clone(), loss.parse().unwrap_or(f64::NAN));
            return Err(TrainError::NotFinite { step, phase, loss, saved: None, elsewhere: true });
        }
        Ok(())
    }

    /// This rank's last reports.
    pub(super) fn own_reports(&self) -> Vec<RankReport> {
        self.recent.iter().flat_map(|recent| &recent.own).cloned().collect()
    }

    /// The report of a step, if it is the last that this rank has done.
    pub(super) fn last_report(&self, step: u64) -> Option<StepReport> {
        let last = self.recent.as_ref()?.last.clone();
        last.filter(|report| report.step == step)
    }

    /// Sets a value of the summary.
    pub(super) fn set_last(&mut self, name: &str, value: impl Into<Value>) {
        self.last.insert(name.to_owned(), value.into());
    }
}
