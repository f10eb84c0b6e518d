//! One rank of a run, from its first step to its last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_tensor::{ArithmeticCount, Key, StageRole};

use super::environment::Environment;
use super::reporter::{Reporter, RunView};
use super::requests::Requests;
use super::samples::check_prompts;
use super::saving::Saving;
use super::selection::{Selection, check_measure, check_range_test};
use super::state::TrainState;
use super::step::StepRunner;
use super::world::WorldChanges;
use crate::engine::checkpoint::{Saved, mark_saved};
use crate::engine::data::Data;
use crate::engine::distributed::{AgreedAction, Distributed, Network};
use crate::engine::generative_metrics::GenerativeMetrics;
use crate::engine::observer::{Observer, ScaledRate, Started, StartedRanks, StepRange};
use crate::engine::peak::PeakRate;
use crate::engine::stages::Stages;
use crate::engine::step_outline::check_cuts;
use crate::engine::training::{ImageSource, Notices, Task};
use crate::engine::{TrainError, optimize, precision};
use phalanx_config::{Config, Resolved};
use phalanx_run::{NextCommands, RunFolder, Summary};

/// The end of a run that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The last step is done.
    Finished,
    /// A rank was told to stop; all ranks have saved the same step.
    Interrupted,
    /// This rank was told to leave, and the others continue.
    Left,
}

/// The end of the steps in one world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LoopEnd {
    /// The last step is done, or the run was interrupted.
    Through { interrupted: bool },
    /// The run continues in another world after this action.
    World(AgreedAction),
}

/// One rank of a run.
pub(super) struct Run<'a> {
    pub(super) env: Environment<'a>,
    pub(super) data: Data,
    pub(super) distributed: Distributed,
    pub(super) state: TrainState,
    pub(super) steps: StepRunner,
    pub(super) reporter: Reporter,
    pub(super) requests: Requests,
    pub(super) saving: Saving,
    pub(super) changes: WorldChanges<'a>,
    /// The best evaluation so far.
    pub(super) selection: Selection,
    /// Measures generated images, if there are networks for it.
    pub(super) quality: Option<GenerativeMetrics>,
    /// The last step whose evaluation, samples and checkpoint are done.
    pub(super) followed: u64,
}

/// The parts of a run whose creation may fail on one rank alone.
struct Parts<'a> {
    env: Environment<'a>,
    data: Data,
    state: TrainState,
    steps: StepRunner,
    selection: Selection,
    quality: Option<GenerativeMetrics>,
}

impl<'a> Parts<'a> {
    fn new(
        task: &Task,
        folder: &'a RunFolder,
        config: &'a Config,
        distributed: &Distributed,
    ) -> Result<Self, TrainError> {
        let context = precision::context(config, distributed.threads(config.train.threads)?)?;
        let device = distributed.device().compute().clone();
        let room = config.data.device_cache_mib.saturating_mul(1 << 20);
        let data = Data::open(config, task.open_data(config), distributed, &device, room)?;
        let plan = data.plan(config)?;
        let peak = match distributed.rank() {
            0 => PeakRate::of(config, distributed.device(), &context)?,
            _ => PeakRate::default(),
        };
        let (key, arithmetic) = (Key::new(config.train.seed), ArithmeticCount::default());
        let notices = Notices::default();
        let tensor_group = distributed.tensor_group(config, context.threads())?;
        // Batches for a device are not for outlines, and where one rank reads for all the others have none.
        let of_host = (device.is_host() && distributed.fed().is_none()).then_some(&data);
        let stages = match Stages::of(task, config, of_host)?.zip(distributed.pipeline()) {
            Some((stages, comm)) => Some(Arc::new(stages.connected(comm, config, &device)?)),
            None => None,
        };
        let shared = stages.as_ref().zip(distributed.pipeline());
        let shared_stages = shared.map(|(stages, comm)| StageRole::Share(stages.shared(comm)));
        let env = Environment {
            folder,
            config,
            plan,
            context,
            device,
            tensor_group,
            stages,
            shared_stages,
            key,
            arithmetic,
            peak,
            notices,
        };
        if distributed.rank() == 0 && env.tensor_group.is_some() {
            check_cuts(task, config, env.device.is_host().then_some(&data))?;
        }
        let state = env.build_state(task, data.num_classes(), distributed)?;
        check_measure(config, &*state.training)?;
        check_range_test(config, &*state.training)?;
        let quality = GenerativeMetrics::open(task, &env.context, &env.device)?;
        if quality.is_some() {
            GenerativeMetrics::check_draws(&*state.training, &config.model.kind)?;
        }
        let steps = StepRunner::new(&env, distributed, state.training.phases().len())?;
        let selection = Selection::new(&env, &*state.training);
        Ok(Self { env, data, state, steps, selection, quality })
    }
}

impl<'a> Run<'a> {
    /// Creates everything that a rank trains with. If that fails, tells the other ranks.
    pub(super) fn new(
        task: &'a Task,
        folder: &'a RunFolder,
        config: &'a Config,
        distributed: Distributed,
        observer: Box<dyn Observer>,
    ) -> Result<Self, TrainError> {
        let parts = Parts::new(task, folder, config, &distributed);
        let Parts { env, data, state, steps, selection, quality } = match parts {
            Ok(parts) => parts,
            // The ranks that it was to join continue without it.
            Err(error) if distributed.roster().has_joined() => {
                distributed.leave_silently();
                return Err(error);
            }
            Err(error) => return distributed.part(Err(error)),
        };
        Ok(Self {
            reporter: Reporter::new(&env, &distributed, state.training.phases(), observer),
            saving: Saving::new(&env),
            changes: WorldChanges::new(&env, task, &distributed),
            requests: Requests::default(),
            followed: 0,
            env,
            data,
            distributed,
            state,
            steps,
            selection,
            quality,
        })
    }

    /// Trains from the newest checkpoint to the end of the plan, then leaves the world.
    pub(super) fn train(
        mut self,
        task: &Task,
        resolved: &Resolved,
        start: Instant,
    ) -> Result<RunEnd, TrainError> {
        let trained = self.train_among(task, resolved, start);
        let trained =
            trained.map_err(|error| error.renumbered(|rank| self.distributed.roster().number_of(rank)));
        // The shared state of networks is freed before the world that it is shared in.
        let Self { distributed, state, changes, .. } = self;
        drop(state);
        // If a joining rank fails, the others continue.
        let never_joined = trained.is_err() && changes.is_new();
        if never_joined || matches!(trained, Ok(RunEnd::Left)) {
            distributed.leave_silently();
            return trained;
        }
        distributed.part(trained)
    }

    fn train_among(
        &mut self,
        task: &Task,
        resolved: &Resolved,
        start: Instant,
    ) -> Result<RunEnd, TrainError> {
        match self.distributed.roster().has_joined() {
            true => self.join()?,
            false => {
                let weights = self.resume()?;
                check_prompts(&self.env, &self.distributed, &mut self.state)?;
                self.accept_configuration(task, resolved, weights.as_ref())?;
            }
        }
        let is_done = self.state.step >= self.env.plan.stop && !self.distributed.roster().has_joined();
        if is_done && self.is_concluded()? {
            let step = self.state.step;
            self.reporter.note(match self.selection.has_ended_early(step) {
                true => {
                    format!("nothing to do: stopped early after step {step}: {}", self.selection.reason())
                }
                false => self.env.nothing_to_do(step),
            });
            self.distributed.meet_at_the_end()?;
            return Ok(RunEnd::Finished);
        }
        if is_done {
            // The run failed between its last checkpoint and its summary.
            self.repeat_measures()?;
            if self.is_first() {
                self.reporter.read_last(&self.env, &self.state)?;
            }
        }
        self.begin()?;
        let (interrupted, summary) = loop {
            let ended = match self.steps() {
                Ok(LoopEnd::Through { interrupted }) => self.conclude(interrupted, start.elapsed()),
                Ok(LoopEnd::World(action @ AgreedAction::Leave(number)))
                    if number == self.distributed.roster().number() =>
                {
                    return self.leave(&action);
                }
                Ok(LoopEnd::World(action)) => match self.change_worlds(&action) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            match ended {
                Ok(summary) => break summary,
                Err(error) => self.recover(error)?,
            }
        };
        if let Some(summary) = summary {
            self.finish(&summary, interrupted, resolved);
        }
        Ok(if interrupted { RunEnd::Interrupted } else { RunEnd::Finished })
    }

    /// Tells that training begins, and starts to receive requests, to sample resources and to trace.
    fn begin(&mut self) -> Result<(), TrainError> {
        let started = self.started();
        self.reporter.observer.started(&started);
        let is_first = self.is_first();
        for problem in self.distributed.cores().problems().iter().filter(|_| is_first) {
            tracing::warn!("{problem}");
            self.reporter.note(format!("warning: {problem}"));
        }
        for note in self.data.notes().iter().filter(|_| is_first) {
            self.reporter.note(note.clone());
        }
        let learnt = self.state.networks().filter(|network| network.is_learnt());
        let learnt: Vec<&str> = learnt.map(Network::name).collect();
        if let Some(warning) = self.env.steps_without_rate(self.state.step, &learnt).filter(|_| is_first) {
            self.reporter.note(format!("warning: {warning}"));
        }
        if let Some(note) = self.env.shorter_warm_up(&learnt).filter(|_| is_first) {
            self.reporter.note(note);
        }
        if is_first {
            self.requests.open(self.env.folder, &started)?;
        }
        self.reporter.start_sampling(&self.env, &self.distributed, self.state.step)?;
        self.reporter.trace.begin(self.env.config, &self.distributed)
    }

    /// True if the result of a run whose last step is done is written, or if it has more steps than are wanted now. All ranks call this
    /// together.
    fn is_concluded(&self) -> Result<bool, TrainError> {
        let summary = Summary::read(&self.env.folder.summary());
        let is_written =
            summary.is_ok_and(|summary| summary.status == "finished") || self.state.step > self.env.plan.stop;
        // The folders of several hosts need not be in sync.
        let mut answer = [u8::from(is_written)];
        self.distributed.exchange().broadcast_bytes(&mut answer, 0)?;
        Ok(answer == [1])
    }

    /// Writes the result of the run on rank 0. A rank that is lost before all ranks are here counts as missing.
    fn conclude(&mut self, interrupted: bool, wall: Duration) -> Result<(bool, Option<Summary>), TrainError> {
        self.report_damage()?;
        let (reporter, view) = self.reporting();
        let summary = reporter.summary(&view, interrupted, wall)?;
        self.reporter.trace.write(self.env.folder, &self.distributed, !interrupted)?;
        if let Some(summary) = &summary {
            summary.write(&self.env.folder.summary())?;
        }
        self.distributed.meet_at_the_end()?;
        Ok((interrupted, summary))
    }

    /// Tells the end of the run, on rank 0.
    fn finish(&mut self, summary: &Summary, interrupted: bool, resolved: &Resolved) {
        if let Some(handler) = self.requests.take_handler() {
            handler.close(summary.step);
        }
        let program = &resolved.catalogue().program;
        if self.reporter.trace.is_written() {
            let path = self.env.folder.trace();
            self.reporter.note(format!(
                "trace of all ranks: {0}; open it in ui.perfetto.dev, or: {program} trace summary {0}",
                path.display()
            ));
        }
        if interrupted {
            self.reporter.note(summary.how_to_continue(program, self.env.folder.path()));
        }
        self.reporter.observer.finished(summary);
        if !interrupted {
            let next = self.next_commands(program, summary);
            next.lines(self.env.folder.path()).into_iter().for_each(|line| self.reporter.note(line));
        }
    }

    /// The commands that follow the run.
    fn next_commands(&self, program: &str, summary: &Summary) -> NextCommands {
        let (config, training) = (self.env.config, &self.state.training);
        let draws = training.image_source() == Some(ImageSource::Prompts);
        let configured = || config.sample.prompts.first().cloned();
        // Captions that cannot be read are no reason to fail now.
        let caption = || self.data.test_captions(1).ok()?.pop();
        NextCommands {
            program: program.to_owned(),
            is_saved: config.checkpoint.enabled,
            prompt: if draws { configured().or_else(caption) } else { None },
            texts: training.outline().texts,
            is_evaluated: config.eval.enabled,
            has_best: summary.best.is_some() && !config.checkpoint.best.is_empty(),
            longer: match summary.stopped_early {
                true => format!("--set train.patience={}", 2 * config.train.patience),
                false => self.env.twice_as_long(),
            },
        }
    }

    /// True on rank 0.
    pub(super) fn is_first(&self) -> bool {
        self.distributed.rank() == 0
    }

    /// Describes the run before its first step.
    pub(super) fn started(&self) -> Started {
        let Self { env, distributed, state, .. } = self;
        let name = env.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Started {
            name,
            folder: env.folder.path().to_owned(),
            model: state.training.describe().to_owned(),
            parameters: state.num_parameters(),
            data: self.data.describe(),
            images: env.plan.images,
            ranks: StartedRanks {
                training: distributed.training_ranks(),
                servers: env.config.sync.servers,
                threads: env.context.threads(),
                cores: distributed.cores().words().to_owned(),
                strategy: env.config.train.strategy.to_string(),
                tensor: env.config.tensor_ranks(),
                stages: env.config.stages_in_words(),
            },
            device: distributed.device().describe().to_owned(),
            headline: state.training.outline().headline,
            scaled_rates: self.scaled_rates(),
            steps: StepRange { done: state.step, total: env.plan.stop, per_epoch: env.plan.steps_per_epoch },
        }
    }

    /// The learning rates of networks that the batch scales.
    fn scaled_rates(&self) -> Vec<ScaledRate> {
        let rate = |network: &Network| {
            let config = self.env.config.for_network(network.name());
            let (batch, base_batch) = (config.train.global_batch, config.optim.base_batch);
            let rate = ScaledRate {
                network: network.name().to_owned(),
                rate: optimize::peak_rate(&config),
                configured: config.optim.lr,
                batch,
                base_batch,
            };
            (base_batch > 0 && base_batch != batch).then_some(rate)
        };
        self.state.networks().filter(|network| network.is_learnt()).filter_map(rate).collect()
    }

    /// Splits the run into the reporter and the parts that reports are made of.
    pub(super) fn reporting(&mut self) -> (&mut Reporter, RunView<'_, 'a>) {
        let Self { env, distributed, state, steps, reporter, changes, selection, .. } = self;
        (reporter, RunView { env, distributed, state, changes, schedule: steps.schedule(), selection })
    }

    /// Starts to save the state after the last step. All ranks call this together.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        let wants = self.reporter.broken.is_none();
        let (distributed, selection) = (&self.distributed, &self.selection);
        for saved in self.saving.begin(&self.env, distributed, &self.state, selection, wants)? {
            self.report_saved(saved);
        }
        Ok(())
    }

    /// Reports a complete checkpoint, on rank 0.
    pub(super) fn report_saved(&mut self, saved: Saved) {
        mark_saved(self.env.folder, saved.step);
        self.reporter.report_saved(saved);
    }

    /// Waits until the current checkpoint is complete. All ranks call this together.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        if let Some(saved) = self.saving.settle(&self.distributed)? {
            self.report_saved(saved);
        }
        self.reporter.set_last("save_seconds", self.saving.paused_seconds());
        Ok(())
    }
}
