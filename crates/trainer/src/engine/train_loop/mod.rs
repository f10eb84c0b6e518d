//! The training loop of one rank.

mod account;
mod after;
mod by_rank;
mod chaos;
mod elastic;
#[cfg(any(test, fuzzing))]
mod fuzzing;
mod left;
mod losses;
mod meter;
mod replicas;
mod replicas_check;
mod requests;
mod shards;
mod state;
mod step;
mod steps;
mod traced;
mod trainable;
mod usage;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use phalanx_tensor::{ComputeDevice, Context, Key};
use serde_json::{Map, Value};

#[cfg(any(test, fuzzing))]
pub use fuzzing::Resumable;
pub use replicas::{ReplicaFailure, train_replicas};

use by_rank::ByRank;
use chaos::{Delay, Faults};
use elastic::Elastic;
use losses::Losses;
use meter::Meter;
use requests::Desk;
use state::TrainState;
use step::Taken;
use steps::Ended;
use traced::Traced;

use super::checkpoint::{Saver, find_checkpoint};
use super::data::Data;
use super::device::Gauge;
use super::distributed::{Distributed, Interlude, Network, Shares, StopReason, World};
use super::observer::{Event, Observer, Started, StepReport};
use super::quality::Quality;
use super::repeated::Repeated;
use super::training::{Task, Weights};
use super::watch::Watch;
use super::{Plan, TrainError, precision};
use crate::config::{Config, Resolved};
use crate::usage::Sampler;
use phalanx_run::StopFlag;
use phalanx_run::{DeadRank, EventFile, RunFolder, Summary};

/// How a run has ended that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// It has come to its last step.
    Finished,
    /// A rank was told to stop; all have saved the same step.
    Interrupted,
    /// This rank was told to leave, and the others go on.
    Left,
}

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
) -> Result<RunEnd, TrainError> {
    let start = Instant::now();
    let config = &resolved.config;
    world.check(config)?;
    traced::prepare(config)?;
    // Whatever is traced on this thread, and on those that it starts, is this rank's.
    let rank =
        tracing::trace_span!(target: "phalanx_trace::rank", "rank", rank = world.rank() as u64).entered();
    let mut train = || {
        let distributed = Distributed::connect(world, config, &folder.logs(), stop)?;
        let context = precision::context(config, distributed.cores().threads(config.train.threads))?;
        Run::new(task, folder, config, distributed, context)?.train(resolved, start, observer.as_mut())
    };
    let trained: Result<RunEnd, TrainError> = train();
    drop(rank);
    trained.inspect_err(|_| traced::give_up(config, folder, world))
}

/// Finds what a rank of a run needs, and builds its networks without values: what goes wrong in that goes wrong before anybody waits
/// for the rank.
///
/// # Errors
/// See [`TrainError`].
pub fn rehearse(task: &Task, config: &Config) -> Result<(), TrainError> {
    let (place, alone) = (ComputeDevice::host(), Distributed::none());
    let data = Data::open(config, task.open_data(config), &alone, &place, 0)?;
    let (images, batch) = (data.train_len(), config.train.global_batch);
    Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
    task.build(config, Some(data.num_classes()), Weights::Absent, &place)?;
    Ok(())
}

/// One rank of a run.
pub(super) struct Run<'a> {
    folder: &'a RunFolder,
    config: &'a Config,
    data: Data,
    distributed: Distributed,
    plan: Plan,
    state: TrainState,
    context: Arc<Context>,
    /// Where arrays are made.
    place: ComputeDevice,
    /// What the GPU does, if there is one.
    gauge: Option<Arc<Gauge>>,
    /// What this rank uses, once it trains.
    usage: Option<Sampler>,
    /// Its part in the run's trace, if there is to be one.
    traced: Option<Traced>,
    meter: Meter,
    losses: Losses,
    /// The work of each phase.
    repeated: Vec<Repeated>,
    /// The last step, while nobody has read what it measured.
    taken: Option<Taken>,
    /// Where ranks do not take every step together: steps of which not all ranks have told their losses, with their phases, and
    /// whether each has a line.
    behind: VecDeque<(StepReport, Vec<usize>, bool)>,
    /// The newest step of which all is known, while nobody has told of it, and whether it has a line.
    untold: Option<(StepReport, bool)>,
    /// The last step that all is done of that follows it.
    followed: u64,
    /// What was evaluated after which step, until it is written.
    evaluated: Option<(u64, Vec<(String, f64)>)>,
    /// Whether users want no step to be taken.
    pauses: bool,
    /// What all had agreed to stop for when the world broke.
    stops: Option<StopReason>,
    /// Whether the trace of the run is written.
    is_traced: bool,
    /// Its parts of the steps' batches.
    shares: Shares,
    /// Who has died.
    dead: Vec<DeadRank>,
    /// What is kept for other worlds, if the run may go on in some.
    elastic: Option<Elastic<'a>>,
    /// The last step of which others have done all that follows it when a rank was lost.
    met: u64,
    /// The step of a checkpoint that was not complete when a rank was lost.
    unsaved: Option<u64>,
    /// On rank 0, where users are heard.
    desk: Option<Desk>,
    /// What all ranks have agreed to do before the next step.
    asked: VecDeque<Interlude>,
    /// On rank 0, where ranks do not take every step together: what each has told.
    by_rank: Option<ByRank>,
    /// Seconds of training before this run was resumed, as its metrics say.
    seconds_before: f64,
    /// On rank 0, if `log.tensorboard` is set and a line was written: the events of this process.
    events: Option<EventFile>,
    /// What makes this rank slow on purpose.
    delay: Option<Delay>,
    /// What goes wrong on it on purpose.
    faults: Faults,
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
    /// Makes everything that a rank trains with; if that fails, the other ranks hear of it.
    fn new(
        task: &'a Task,
        folder: &'a RunFolder,
        config: &'a Config,
        distributed: Distributed,
        context: Arc<Context>,
    ) -> Result<Self, TrainError> {
        let made = Self::made(task, folder, config, &distributed, &context);
        let (data, plan, state, quality) = match made {
            Ok(made) => made,
            // Those who have let it come go on without it.
            Err(error) if distributed.has_joined() => {
                distributed.leave_silently();
                return Err(error);
            }
            Err(error) => return distributed.part(Err(error)),
        };
        let phases = state.training.phases().len();
        let repeated = || Repeated::new(distributed.device(), config.train.graphs);
        Ok(Self {
            folder,
            config,
            data,
            plan,
            context,
            place: distributed.device().compute().clone(),
            gauge: Gauge::of(distributed.device()).map(Arc::new),
            usage: None,
            traced: None,
            meter: Meter::default(),
            losses: Losses::default(),
            repeated: std::iter::repeat_with(repeated).take(phases).collect(),
            taken: None,
            behind: VecDeque::new(),
            untold: None,
            followed: 0,
            evaluated: None,
            pauses: false,
            stops: None,
            is_traced: false,
            shares: Shares::new(distributed.share()),
            dead: Vec::new(),
            elastic: Elastic::of(config, task, &distributed),
            met: 0,
            unsaved: None,
            desk: None,
            asked: VecDeque::new(),
            by_rank: None,
            seconds_before: 0.0,
            events: None,
            delay: Delay::of(config, distributed.rank()),
            faults: Faults::of(config, distributed.rank()),
            saver: Saver::new(folder, config),
            quality,
            broken: None,
            key: Key::new(config.train.seed),
            watch: Watch::new(&config.watch, state.training.phases()),
            last: Map::new(),
            state,
            distributed,
        })
    }

    fn made(
        task: &Task,
        folder: &RunFolder,
        config: &Config,
        distributed: &Distributed,
        context: &Arc<Context>,
    ) -> Result<(Data, Plan, TrainState, Option<Quality>), TrainError> {
        let place = distributed.device().compute().clone();
        let room = config.data.device_cache_mib.saturating_mul(1 << 20);
        let data = Data::open(config, task.open_data(config), distributed, &place, room)?;
        let (images, batch) = (data.train_len(), config.train.global_batch);
        let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
        let weights = if distributed.is_shared() { Weights::ByRanks } else { Weights::Here };
        let built = task.build(config, Some(data.num_classes()), weights, &place)?;
        let state = TrainState::new(config, built, &plan, distributed, context.clone(), folder.path())?;
        let quality = Quality::open(task, context, &place)?;
        if quality.is_some() && !state.training.draws() {
            let kind = &config.model.kind;
            return Err(TrainError::Setup(format!(
                "quality.judges are given, but a `{kind}` draws no pictures"
            )));
        }
        Ok((data, plan, state, quality))
    }

    /// Goes on from the newest checkpoint to the end of the plan, with ranks that have met, and parts from them.
    fn train(
        mut self,
        resolved: &Resolved,
        start: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunEnd, TrainError> {
        let trained = self.train_among(resolved, start, observer);
        // What networks share with the others goes before what the ranks share.
        let Self { distributed, state, elastic, .. } = self;
        drop(state);
        // A newcomer that cannot take part is no reason for the others to end.
        let never_came = trained.is_err() && elastic.is_some_and(|elastic| elastic.is_new());
        if never_came || matches!(trained, Ok(RunEnd::Left)) {
            distributed.leave_silently();
            return trained;
        }
        distributed.part(trained)
    }

    fn train_among(
        &mut self,
        resolved: &Resolved,
        start: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunEnd, TrainError> {
        match self.distributed.has_joined() {
            true => self.take_part(observer)?,
            false => self.resume(observer)?,
        }
        let is_done = self.state.step >= self.plan.stop && !self.distributed.has_joined();
        if is_done && self.is_concluded()? {
            let (step, stop) = (self.state.step, self.plan.stop);
            observer
                .event(&Event::Note(format!("nothing to do: {step} of {stop} steps are done; see --steps")));
            self.distributed.meet_at_the_end()?;
            return Ok(RunEnd::Finished);
        }
        if is_done && self.is_first() {
            // It was lost between its last checkpoint and its summary.
            self.take_over_last()?;
        }
        let started = self.started();
        observer.started(&started);
        for problem in self.distributed.cores().problems().iter().filter(|_| self.distributed.rank() == 0) {
            tracing::warn!("{problem}");
            observer.event(&Event::Note(format!("warning: {problem}")));
        }
        if self.is_first() {
            self.desk = Some(Desk::open(self.folder, &started)?);
        }
        self.sample_usage()?;
        self.traced = Traced::begin(self.config, &self.distributed)?;
        let (interrupted, summary) = loop {
            let ended = match self.steps(observer) {
                Ok(Ended::Through { interrupted }) => self.conclude(interrupted, start),
                Ok(Ended::World(reason @ Interlude::Leave(number)))
                    if number == self.distributed.number() =>
                {
                    return self.leave(&reason, observer);
                }
                Ok(Ended::World(reason)) => match self.change_worlds(&reason, observer) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            match ended {
                Ok(ended) => break ended,
                Err(error) => self.go_on_without(error, observer)?,
            }
        };
        if let Some(summary) = summary {
            if let Some(desk) = self.desk.take() {
                desk.close(summary.step);
            }
            if self.is_traced {
                let (program, path) = (&resolved.catalogue().program, self.folder.trace());
                observer.event(&Event::Note(format!(
                    "trace of all ranks: {0}; open it in ui.perfetto.dev, or: {program} trace summary {0}",
                    path.display()
                )));
            }
            if interrupted {
                let text = summary.how_to_continue(&resolved.catalogue().program, self.folder.path());
                observer.event(&Event::Note(text));
            }
            observer.finished(&summary);
        }
        Ok(if interrupted { RunEnd::Interrupted } else { RunEnd::Finished })
    }

    /// Whether what a run that has come to its last step has come to is written down, or has more steps than are wanted now. Every rank
    /// calls this at the same place.
    fn is_concluded(&self) -> Result<bool, TrainError> {
        let told = Summary::read(&self.folder.summary());
        let is_told =
            told.is_ok_and(|summary| summary.status == "finished") || self.state.step > self.plan.stop;
        // Folders of several hosts need not show the same at the same moment.
        let mut answer = [u8::from(is_told)];
        self.distributed.broadcast_bytes(&mut answer, 0)?;
        Ok(answer == [1])
    }

    /// Writes down what the run has come to, which is told on rank 0. Whoever dies before all have come this far is missed.
    fn conclude(&mut self, interrupted: bool, start: Instant) -> Result<(bool, Option<Summary>), TrainError> {
        let summary = self.summary(interrupted, start.elapsed())?;
        self.is_traced |= self.write_trace(!interrupted)?;
        if let Some(summary) = &summary {
            summary.write(&self.folder.summary())?;
        }
        self.distributed.meet_at_the_end()?;
        Ok((interrupted, summary))
    }

    fn is_first(&self) -> bool {
        self.distributed.rank() == 0
    }

    /// Goes on from the newest checkpoint, if there is one, and has all ranks agree on which.
    fn resume(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (newest, damaged) = find_checkpoint(&self.distributed, self.folder)?;
        for problem in damaged {
            observer.event(&Event::Note(format!("{problem}; an older checkpoint is used")));
        }
        if let Some(checkpoint) = newest {
            let bytes = self.state.load(&self.distributed, &checkpoint)?;
            self.followed = self.state.step;
            self.losses.begin_after(checkpoint.step());
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
            world_size: self.distributed.data_size(),
            servers: self.config.sync.servers,
            threads: self.context.threads(),
            cores: self.distributed.cores().words().to_owned(),
            device: self.distributed.device().describe().to_owned(),
            strategy: self.config.train.strategy.to_string(),
            done: self.state.step,
            total: self.plan.stop,
            steps_per_epoch: self.plan.steps_per_epoch,
        }
    }
}
