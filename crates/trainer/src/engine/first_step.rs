//! The first step of a training, without numbers or one part at a time: its samples, its networks, and its passes with other ranks
//! played.

use std::sync::Arc;

use phalanx_tensor::{
    ComputeDevice, Context, Key, OutlineGroup, ProcessGroup, Session, Tape, TensorGroup, TensorRank, Value,
};

use super::data::{Data, MicroBatch, StepSamples};
use super::distributed::{Distributed, RankBatch};
use super::training::{BuildTarget, Built, StageTarget, StepInput, Task, Weights};
use super::{TrainError, precision};
use phalanx_config::{Config, Offload};

/// The samples of the first step of the first rank, and how to compute with them.
pub(super) struct FirstStep<'a> {
    task: &'a Task,
    config: Config,
    classes: usize,
    samples: StepSamples,
}

/// A forward pass of the first step.
pub(super) struct FirstForward {
    pub(super) tape: Tape,
    pub(super) loss: Value,
}

impl<'a> FirstStep<'a> {
    /// Reads the samples; opens the data if they are not given.
    pub(super) fn read(task: &'a Task, config: &Config, data: Option<&Data>) -> Result<Self, TrainError> {
        let (alone, mut opened) = (Distributed::none(), None);
        let data = match data {
            Some(data) => data,
            None => {
                opened.insert(Data::open(config, task.open_data(config), &alone, &ComputeDevice::host(), 0)?)
            }
        };
        let plan = data.plan(config)?;
        let first = RankBatch { rank: Some(0), ranks: config.data_ranks() };
        let samples = data.feed(config, &plan, &alone, first, 0)?.next()?;
        // Nothing is moved to a host.
        let mut config = config.clone();
        config.train.offload = Offload::None;
        Ok(Self { task, config, classes: data.num_classes(), samples })
    }

    /// The configuration, without offloaded state.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The micro-batches with samples.
    pub(super) fn micro_batches(&self) -> impl Iterator<Item = &MicroBatch> {
        self.samples.micro_batches.iter().filter(|micro_batch| !micro_batch.batch.is_empty())
    }

    /// Builds the networks, or the portions and the stage of a rank.
    pub(super) fn build(
        &self,
        device: &ComputeDevice,
        tensor: Option<TensorRank>,
        stage: Option<StageTarget<'_>>,
    ) -> Result<Built, TrainError> {
        let target = BuildTarget { tensor, stage, ..BuildTarget::whole(Weights::Placeholder, device) };
        self.task.build(&self.config, Some(self.classes), target)
    }

    /// A session of the step; `others` plays the ranks that share layers, if there are any.
    pub(super) fn session(
        &self,
        context: Arc<Context>,
        device: &ComputeDevice,
        others: Option<Arc<OutlineGroup>>,
    ) -> Session {
        let config = &self.config;
        Session {
            recompute: precision::recompute(config),
            precision: config.train.precision,
            device: device.clone(),
            tensor_group: others.map(|ranks| TensorGroup {
                ranks,
                splits_sequences: config.tensor.sequence,
                overlaps: false,
            }),
            ..Session::training(context, Key::new(config.train.seed))
        }
    }

    /// Runs forward of a phase on a micro-batch.
    pub(super) fn forward(
        &self,
        built: &Built,
        phase: usize,
        (micro_batch, session): (&MicroBatch, &Session),
    ) -> Result<FirstForward, TrainError> {
        let others = micro_batch.ranks;
        let batch_group =
            (others > 1).then(|| Arc::new(OutlineGroup::new(0, others)) as Arc<dyn ProcessGroup>);
        let tape = Tape::recording(Session {
            sample_offset: micro_batch.offset,
            batch_group,
            frozen: built.training.phases()[phase].constants(&built.networks),
            ..session.clone()
        });
        let step = StepInput::new(&tape, &micro_batch.batch, self.samples.global_weight, 0, session.key);
        let loss = built.training.loss(phase, &step)?.value;
        Ok(FirstForward { tape, loss })
    }
}
