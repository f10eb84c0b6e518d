//! The training loop of one rank.

mod account;
mod after;
mod by_rank;
mod chaos;
mod losses;
mod meter;
mod replicas;
mod state;
mod step;
mod trainable;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use phalanx_tensor::{Context, Key, Place};
use serde_json::{Map, Value};

pub use replicas::{ReplicaFailure, train_replicas};

use by_rank::ByRank;
use chaos::Delay;
use losses::Losses;
use meter::Meter;
use state::TrainState;
use step::Taken;

use super::checkpoint::{Saver, find_checkpoint};
use super::data::Data;
use super::device::Gauge;
use super::distributed::{Distributed, Network, StopReason, World};
use super::observer::{Event, Observer, Started, StepReport};
use super::quality::Quality;
use super::repeated::Repeated;
use super::training::{Task, Weights};
use super::watch::Watch;
use super::{Plan, TrainError, precision};
use crate::config::{Config, Resolved};
use crate::launch::StopFlag;
use crate::run::{MetricsWriter, RunFolder};

/// Trains a task as one rank of `world`, going on from the newest complete checkpoint in `folder` if there is one, until
/// the configured step or until `stop` is raised on any rank.
///
/// # Errors
/// See [`TrainError`]; one for which [`TrainError::is_cancelled`] holds, if `stop` is raised before the ranks have met. A
/// failing rank makes the other ranks fail with an error for which [`TrainError::is_consequence`] holds.
pub fn train(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    world: &World,
    stop: &StopFlag,
    mut observer: Box<dyn Observer>,
) -> Result<(), TrainError> {
    let start = Instant::now();
    let config = &resolved.config;
    world.check(config)?;
    let context = precision::context(config, world)?;
    let mut distributed = Distributed::connect(world, config, &folder.logs(), stop)?;
    let trained = Run::new(task, folder, config, &distributed, context)
        .and_then(|run| run.train(resolved, start, observer.as_mut()));
    match &trained {
        Ok(()) => distributed.finish()?,
        Err(error) if error.is_consequence() => {}
        Err(error) => distributed.abort(&error.to_string()),
    }
    trained
}

/// One rank of a run.
pub(super) struct Run<'a> {
    folder: &'a RunFolder,
    config: &'a Config,
    data: Data,
    distributed: &'a Distributed,
    plan: Plan,
    state: TrainState,
    context: Arc<Context>,
    /// Where arrays are made.
    place: Place,
    /// What the GPU does, if there is one.
    gauge: Option<Gauge>,
    meter: Meter,
    losses: Losses,
    /// The work of each phase.
    repeated: Vec<Repeated>,
    /// The last step, while nobody has read what it measured.
    taken: Option<Taken>,
    /// Where ranks do not take every step together: steps of which not all ranks have told their losses, with their phases, and
    /// whether each has a line.
    behind: VecDeque<(StepReport, Vec<usize>, bool)>,
    /// On rank 0, where ranks do not take every step together: what each has told.
    by_rank: Option<ByRank>,
    /// Seconds of training before this run was resumed, as its metrics say.
    seconds_before: f64,
    /// What makes this rank slow on purpose.
    delay: Option<Delay>,
    saver: Saver,
    /// Who judges what is drawn, if anybody does.
    quality: Option<Quality>,
    /// On rank 0, why the run cannot go on: a loss was not finite.
    broken: Option<TrainError>,
    key: Key,
    watch: Watch,
    /// The last line and the last evaluation, for the summary.
    last: Map<String, Value>,
}

impl<'a> Run<'a> {
    fn new(
        task: &Task,
        folder: &'a RunFolder,
        config: &'a Config,
        distributed: &'a Distributed,
        context: Arc<Context>,
    ) -> Result<Self, TrainError> {
        let (place, room) =
            (distributed.device().place(), config.data.device_cache_mib.saturating_mul(1 << 20));
        let data = Data::open(config, task.open_data(config), distributed, place, room)?;
        let (images, batch) = (data.train_len(), config.train.global_batch);
        let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
        let key = Key::new(config.train.seed);
        let place = distributed.device().place().clone();
        let weights = if distributed.is_shared() { Weights::ByRanks } else { Weights::Here };
        let built = task.build(config, Some(data.num_classes()), weights, &place)?;
        let state = TrainState::new(config, built, &plan, distributed, context.clone(), folder.path())?;
        let (meter, losses, saver) = (Meter::default(), Losses::default(), Saver::new(folder, config));
        let (broken, last, quality) = (None, Map::new(), Quality::open(task, &context, &place)?);
        if quality.is_some() && !state.training.draws() {
            let kind = &config.model.kind;
            return Err(TrainError::Setup(format!(
                "quality.judges are given, but a `{kind}` draws no pictures"
            )));
        }
        let watch = Watch::new(&config.watch, state.training.phases());
        let phases = state.training.phases().len();
        let repeated = || Repeated::new(distributed.device(), config.train.graphs);
        Ok(Self {
            folder,
            config,
            data,
            distributed,
            plan,
            state,
            context,
            place,
            gauge: Gauge::of(distributed.device()),
            meter,
            losses,
            repeated: std::iter::repeat_with(repeated).take(phases).collect(),
            taken: None,
            behind: VecDeque::new(),
            by_rank: None,
            seconds_before: 0.0,
            delay: Delay::of(config, distributed.rank()),
            saver,
            quality,
            broken,
            key,
            watch,
            last,
        })
    }

    /// Goes on from the newest checkpoint to the end of the plan, with ranks that have met.
    fn train(
        mut self,
        resolved: &Resolved,
        start: Instant,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.resume(observer)?;
        if self.state.step >= self.plan.stop {
            let (step, stop) = (self.state.step, self.plan.stop);
            observer
                .event(&Event::Note(format!("nothing to do: {step} of {stop} steps are done; see --steps")));
            return Ok(());
        }
        observer.started(&self.started());
        let interrupted = self.steps(observer)?;
        let summary = self.summary(interrupted, start.elapsed())?;
        if let Some(summary) = summary {
            summary.write(&self.folder.summary())?;
            if interrupted {
                let (program, path) = (&resolved.catalogue().program, self.folder.path().display());
                observer.event(&Event::Note(format!(
                    "interrupted after step {}; continue with: {program} train --resume --out {path}",
                    summary.step
                )));
            }
            observer.finished(&summary);
        }
        Ok(())
    }

    fn is_first(&self) -> bool {
        self.distributed.rank() == 0
    }

    /// Goes on from the newest checkpoint, if there is one, and has all ranks agree on which.
    fn resume(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (newest, damaged) = find_checkpoint(self.distributed, self.folder)?;
        for problem in damaged {
            observer.event(&Event::Note(format!("{problem}; an older checkpoint is used")));
        }
        if let Some(checkpoint) = newest {
            let bytes = self.state.load(self.distributed, &checkpoint)?;
            let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
            tracing::info!("resumes after step {step} with {bytes} bytes read from {}", path.display());
            observer.event(&Event::Resumed { step, path });
        }
        self.state.networks().try_for_each(Network::broadcast_state)
    }

    fn started(&self) -> Started {
        let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Started {
            name,
            folder: self.folder.path().to_owned(),
            model: self.state.training.describe().to_owned(),
            parameters: self.state.num_parameters(),
            data: self.data.describe(),
            images: self.plan.images,
            world_size: self.distributed.size(),
            threads: self.context.threads(),
            device: self.distributed.device().describe().to_owned(),
            strategy: self.config.train.strategy.to_string(),
            done: self.state.step,
            total: self.plan.stop,
            steps_per_epoch: self.plan.steps_per_epoch,
        }
    }

    /// Trains to the end of the plan, or until a stop is asked for. True if it was.
    ///
    /// Each step is a point before which all ranks can stop, and what follows it is another.
    fn steps(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let mut metrics = None;
        if self.is_first() {
            let opened = MetricsWriter::open(&self.folder.metrics(), self.state.step)?;
            self.seconds_before = opened.last().and_then(|line| line.number("seconds")).unwrap_or_default();
            metrics = Some(opened);
            if !self.state.is_lockstep() {
                self.by_rank = Some(ByRank::open(self.folder, self.state.step, self.seconds_before)?);
            }
        }
        let mut feed = self.data.feed(self.config, &self.plan, self.distributed, self.state.step)?;
        let job = self.distributed.job();
        let mut stopped = None;
        while self.state.step < self.plan.stop && stopped.is_none() {
            stopped = job.begin(2 * self.state.step)?;
            if stopped.is_some() {
                break;
            }
            let taken = self.step(&mut feed)?;
            let (step, last) = (self.state.step, self.state.step == self.plan.stop);
            self.tell_of_codecs(observer)?;
            // What a device computes is read when it has the next step to do, unless something follows that wants it now.
            self.tell_of_last(false, metrics.as_mut(), observer)?;
            let now = self.place.is_host() || self.is_something_due(step, last);
            let report = match now {
                true => Some(self.read(taken)?),
                false => {
                    self.taken = Some(taken);
                    None
                }
            };
            if let Some(saved) = self.saver.look(self.distributed)? {
                after::tell_saved(observer, saved);
            }
            stopped = job.begin(2 * step - 1)?;
            let Some((mut report, phases)) = report else { continue };
            let line_due = stopped.is_some() || self.is_line_due(step, last);
            if !self.state.is_lockstep() {
                self.behind.push_back((report, phases, line_due));
                let meets = stopped.is_some() || self.do_ranks_meet(step, last);
                self.tell_of_those_behind(meets, metrics.as_mut(), observer)?;
                if !meets {
                    continue;
                }
                // This step's own, which is complete.
                let Some((newest, ..)) = self.behind.pop_back() else { continue };
                report = newest;
            }
            // Whoever interrupts wants the checkpoint and nothing else.
            let eval = &self.config.eval;
            let mut evaluated = Vec::new();
            if stopped.is_none() && eval.enabled && self.plan.is_due(eval.every, step, last) {
                evaluated = after::evaluate_run(self)?;
            }
            if stopped.is_none() && self.plan.is_due(self.config.quality.every, step, last) {
                evaluated.extend(after::judge_run(self)?);
            }
            self.tell(report, line_due, evaluated, metrics.as_mut(), observer)?;
            if stopped.is_none() {
                self.after_step(step, last, observer)?;
            }
        }
        self.tell_of_last(true, metrics.as_mut(), observer)?;
        if !self.state.is_lockstep() {
            // All stop before the same point, so all have told of these steps.
            self.tell_of_those_behind(true, metrics.as_mut(), observer)?;
            if let Some((newest, _, due)) = self.behind.pop_back() {
                self.tell(newest, due, Vec::new(), metrics.as_mut(), observer)?;
            }
        }
        let interrupted = stopped == Some(StopReason::Asked);
        if interrupted {
            self.save(self.state.step, observer)?;
        }
        self.settle(observer)?;
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        if let Some(StopReason::NotFinite { step, phase, loss }) = stopped {
            let loss = loss.parse().unwrap_or(f64::NAN);
            return Err(TrainError::NotFinite { step, phase, loss, elsewhere: true });
        }
        Ok(interrupted)
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
        while let Some((_, phases, _)) = self.behind.front() {
            let phases = phases.clone();
            let told = self.losses.bring_together(self.distributed, meets)?;
            if told.is_none() && self.is_first() {
                return Ok(());
            }
            let Some((mut report, _, due)) = self.behind.pop_front() else { return Ok(()) };
            if let (Some(by_rank), Some(told)) = (&mut self.by_rank, &told) {
                let of_step: Vec<_> =
                    phases.iter().map(|phase| self.state.training.phases()[*phase]).collect();
                by_rank.write(report.step, &of_step, told)?;
            }
            self.take_losses(&mut report, &phases, told.as_deref())?;
            if meets && self.behind.is_empty() {
                self.behind.push_back((report, phases, due));
                return Ok(());
            }
            self.tell(report, due, Vec::new(), metrics.as_deref_mut(), observer)?;
        }
        Ok(())
    }

    /// Whether all ranks come together after this step, whoever is behind.
    fn do_ranks_meet(&self, step: u64, last: bool) -> bool {
        let Config { eval, quality, sample, checkpoint, .. } = self.config;
        let every = [quality.every, sample.every, checkpoint.every];
        eval.enabled && self.plan.is_due(eval.every, step, last)
            || every.into_iter().any(|every| self.plan.is_due(every, step, last))
    }

    /// Reads the step before the one that was just queued, if nobody has, and tells of it.
    fn tell_of_last(
        &mut self,
        due: bool,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(taken) = self.taken.take() else { return Ok(()) };
        let (report, _) = self.read(taken)?;
        self.tell(report, due, Vec::new(), metrics, observer)
    }

    /// Whether a step has a line of metrics.
    fn is_line_due(&self, step: u64, last: bool) -> bool {
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
        evaluated: Vec<(String, f64)>,
        metrics: Option<&mut MetricsWriter>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if self.broken.is_some() {
            return Ok(());
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
