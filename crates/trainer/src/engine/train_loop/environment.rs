//! The parts of a run that stay the same from its first step to its last.

use std::path::PathBuf;
use std::sync::Arc;

use phalanx_collectives::Clock;
use phalanx_sharding::VirtualRanks;
use phalanx_tensor::{
    ArithmeticCount, ComputeDevice, Context, Key, Listener, Session, StageRole, TensorGroup,
};

use super::sample_kind::SampleKind;
use super::state::TrainState;
use crate::engine::distributed::Distributed;
use crate::engine::peak::PeakRate;
use crate::engine::stages::Stages;
use crate::engine::training::{BuildTarget, Notices, StageTarget, Task, Weights};
use crate::engine::{Plan, TrainError};
use phalanx_config::Config;
use phalanx_run::RunFolder;

/// The parts of a run that stay the same from its first step to its last.
pub(super) struct Environment<'a> {
    pub(super) folder: &'a RunFolder,
    pub(super) config: &'a Config,
    pub(super) plan: Plan,
    pub(super) context: Arc<Context>,
    /// The device that holds arrays.
    pub(super) device: ComputeDevice,
    /// The ranks that compute parts of the same layers; none if layers are not cut.
    pub(super) tensor_group: Option<TensorGroup>,
    /// The stages of the model; none if ranks compute all layers.
    pub(super) stages: Option<Arc<Stages>>,
    /// This rank's part in passes that read numbers, if the model has stages.
    pub(super) shared_stages: Option<StageRole>,
    /// The root of all random streams.
    pub(super) key: Key,
    /// Counts the arithmetic of steps.
    pub(super) arithmetic: ArithmeticCount,
    /// The peak of the device, on the rank that reports.
    pub(super) peak: PeakRate,
    /// The notices of the training that were not reported yet.
    pub(super) notices: Notices,
}

impl Environment<'_> {
    /// The clock that times steps.
    pub(super) fn clock(&self) -> Clock {
        self.config.comm.clock
    }

    /// The floating-point operations per second that the device reaches at most; `None` if that is unknown.
    pub(super) fn peak(&self) -> Option<f64> {
        self.peak.per_second()
    }

    /// True if ranks may join or leave.
    pub(super) fn is_elastic(&self) -> bool {
        self.config.elastic().is_some()
    }

    /// True for the last step of the plan. Steps are counted from 1.
    pub(super) fn is_last(&self, step: u64) -> bool {
        step == self.plan.stop
    }

    /// True if an action with this period is due after a step.
    pub(super) fn is_due(&self, every: u64, step: u64) -> bool {
        self.plan.is_due(every, step, self.is_last(step))
    }

    /// True if a step has a line of metrics.
    pub(super) fn is_logged(&self, step: u64) -> bool {
        step == 1 || self.is_due(self.config.log.every, step)
    }

    /// True if all ranks meet after a step: to evaluate, to sample or to save.
    pub(super) fn do_ranks_meet(&self, step: u64) -> bool {
        let Config { eval, quality, sample, .. } = self.config;
        let every = [quality.every, sample.every, self.checkpoint_period()];
        eval.enabled && self.is_due(self.eval_period(), step)
            || every.into_iter().any(|every| self.is_due(every, step))
    }

    /// The number of steps between evaluations; 0 = only after the last step.
    pub(super) fn eval_period(&self) -> u64 {
        self.plan.period(self.config.eval.every, self.config.eval.every_epochs)
    }

    /// The number of steps between checkpoints; 0 = only after the last step.
    pub(super) fn checkpoint_period(&self) -> u64 {
        let checkpoint = &self.config.checkpoint;
        if checkpoint.enabled { self.plan.period(checkpoint.every, checkpoint.every_epochs) } else { 0 }
    }

    /// True if the losses of a step are needed before the next step. Nothing is reported or saved after a step whose loss is not
    /// finite.
    pub(super) fn needs_losses(&self, step: u64) -> bool {
        self.is_logged(step) || self.do_ranks_meet(step)
    }

    /// The file of samples after a step.
    pub(super) fn samples_path(&self, step: u64, kind: SampleKind) -> PathBuf {
        self.folder.samples().join(format!("step-{step:08}.{}", kind.ending()))
    }

    /// A session for passes that do not train.
    pub(super) fn evaluation_session(&self, listener: Option<Arc<dyn Listener>>) -> Session {
        let (precision, device) = (self.config.train.precision, self.device.clone());
        let (tensor_group, stage) = (self.tensor_group.clone(), self.shared_stages.clone());
        Session {
            precision,
            device,
            listener,
            tensor_group,
            stage,
            ..Session::evaluation(self.context.clone())
        }
    }

    /// Builds the networks of a task and shares them among the ranks.
    pub(super) fn build_state(
        &self,
        task: &Task,
        classes: usize,
        distributed: &Distributed,
    ) -> Result<TrainState, TrainError> {
        let weights = if distributed.is_shared() { Weights::ByRanks } else { Weights::Here };
        let tensor = self.tensor_group.as_ref().map(|_| distributed.tensor_rank());
        let stage = self
            .stages
            .as_ref()
            .map(|stages| StageTarget { params: &stages.params, rank: distributed.stage_rank().rank });
        let target = BuildTarget { weights, device: &self.device, tensor, stage };
        let built = task.build(self.config, Some(classes), target)?;
        let (context, folder) = (self.context.clone(), self.folder.path());
        TrainState::new(self.config, built, &self.plan, distributed, context, folder)
    }

    /// The placement of virtual ranks (`train.logical_ranks`) on ranks, if there are any.
    pub(super) fn virtual_ranks(
        &self,
        distributed: &Distributed,
    ) -> Result<Option<VirtualRanks>, TrainError> {
        let placed = |number| Ok(VirtualRanks::new(number, distributed.data_size())?);
        self.config.logical_ranks().map(placed).transpose()
    }
}
