//! The training loop of one rank.

mod account;
mod after;
mod meter;
mod replicas;
mod state;
mod step;
mod trainable;

use std::sync::Arc;
use std::time::Instant;

use phalanx_tensor::{Context, Key};
use serde_json::{Map, Value};

pub use replicas::{ReplicaFailure, train_replicas};

use meter::Meter;
use state::TrainState;

use super::checkpoint::{Saver, find_checkpoint};
use super::data::Data;
use super::distributed::{Distributed, Network, World};
use super::observer::{Event, Observer, Started};
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
    let distributed = Distributed::connect(world, config, &folder.logs(), stop)?;
    let trained = Run::new(task, folder, config, &distributed, context)
        .and_then(|run| run.train(resolved, stop, start, observer.as_mut()));
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
    meter: Meter,
    saver: Saver,
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
        let data = Data::open(config, task.open_data(config), distributed)?;
        let (images, batch) = (data.train_len(), config.train.global_batch);
        let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
        let key = Key::new(config.train.seed);
        let weights = if distributed.is_shared() { Weights::ByRanks } else { Weights::Here };
        let built = task.build(config, Some(data.num_classes()), weights)?;
        let state = TrainState::new(config, built, &plan, distributed, context.clone())?;
        let (meter, last, saver) = (Meter::default(), Map::new(), Saver::new(folder, config));
        let watch = Watch::new(&config.watch, state.training.phases());
        Ok(Self { folder, config, data, distributed, plan, state, context, meter, saver, key, watch, last })
    }

    /// Goes on from the newest checkpoint to the end of the plan, with ranks that have met.
    fn train(
        mut self,
        resolved: &Resolved,
        stop: &StopFlag,
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
        let interrupted = self.steps(stop, observer)?;
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
            strategy: self.config.train.strategy.to_string(),
            done: self.state.step,
            total: self.plan.stop,
            steps_per_epoch: self.plan.steps_per_epoch,
        }
    }

    /// Trains to the end of the plan, or until a stop is asked for. True if it was.
    fn steps(&mut self, stop: &StopFlag, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let mut metrics = match self.is_first() {
            true => Some(MetricsWriter::open(&self.folder.metrics(), self.state.step)?),
            false => None,
        };
        let mut feed = self.data.feed(self.config, &self.plan, self.distributed, self.state.step)?;
        let mut interrupted = false;
        while self.state.step < self.plan.stop && !interrupted {
            let (report, stopped) = match self.step(&mut feed, stop, observer) {
                Err(error @ TrainError::NotFinite { .. }) => {
                    // All ranks end here together, and can still complete what they have begun to save.
                    self.settle(observer)?;
                    return Err(error);
                }
                outcome => outcome?,
            };
            interrupted = stopped;
            let step = report.step;
            let last = step == self.plan.stop;
            // Whoever interrupts wants the checkpoint and nothing else.
            let eval = &self.config.eval;
            let evaluated = match !interrupted && eval.enabled && self.plan.is_due(eval.every, step, last) {
                true => Some(after::evaluate_run(self)?),
                false => None,
            };
            let collapsed = self.watch.see(&report.phases);
            for problem in &collapsed {
                tracing::warn!("step {step}: {problem}");
                observer.event(&Event::Collapsed { step, problem: problem.clone() });
            }
            let due = step == 1 || self.plan.is_due(self.config.log.every, step, last || interrupted);
            match metrics.as_mut() {
                Some(metrics) if due || evaluated.is_some() || !collapsed.is_empty() => {
                    self.log(report, evaluated, collapsed, metrics, observer)?;
                }
                _ => observer.step(&report, false),
            }
            self.after_step(step, last, interrupted, observer)?;
        }
        self.settle(observer)?;
        Ok(interrupted)
    }
}
