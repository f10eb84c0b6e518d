//! The outline of a step: what ranks compute, keep and send in it, found without numbers.

use std::sync::Arc;

use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ArithmeticCount, ComputeDevice, Context, GroupTraffic, Key, OutlineGroup, ProcessGroup, Session, Tape,
    TensorError, TensorGroup, TensorRank, take_peak_recorded_bytes,
};

use super::data::{Data, StepSamples};
use super::distributed::{Distributed, RankBatch};
use super::training::{BuildTarget, Built, StepInput, Task, Weights};
use super::{TrainError, precision};
use crate::config::{Config, Offload};

/// The work, the memory and the messages of ranks in the first step.
#[derive(Debug, Clone)]
pub struct StepOutline {
    /// The samples of a rank.
    pub samples: usize,
    /// The ranks of the first part of the data, which compute parts of the same layers.
    pub ranks: Vec<RankOutline>,
}

/// The work, the memory and the messages of a rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankOutline {
    /// The floating-point operations of products.
    pub operations: u64,
    /// The bytes of whole parameters.
    pub parameters: u64,
    /// The bytes of their gradients after backward, before they are divided among ranks.
    pub gradients: u64,
    /// The bytes of activations at most, with everything on its way: the samples, buffers, and gradients of activations.
    pub activations: u64,
    /// The bytes of the outputs of recorded ops, as runs report them: also of those whose memory is free early.
    pub recorded: u64,
    /// The messages to the ranks that compute other parts of the same layers.
    pub traffic: GroupTraffic,
}

impl StepOutline {
    /// The rank with the most activations.
    pub fn largest(&self) -> Option<&RankOutline> {
        self.ranks.iter().max_by_key(|rank| rank.activations)
    }
}

/// Runs the first step of a training without numbers, as each of the ranks that compute parts of the same layers. Reads the samples of
/// the step and no weights.
///
/// # Errors
/// Errors of opening the data, of building the networks, and of the step: shapes that do not match, and values that are not what an op
/// needs on ranks that share layers, with the block.
pub fn outline_step(task: &Task, config: &Config) -> Result<StepOutline, TrainError> {
    let alone = Distributed::none();
    let data = Data::open(config, task.open_data(config), &alone, &ComputeDevice::host(), 0)?;
    outline_step_of(task, config, &data)
}

/// Tells layers that do not fit as they are cut, by a step without numbers, before a training begins; with `data` of the host, if it is
/// open. A training that reads numbers in its step is not checked.
pub(super) fn check_cuts(task: &Task, config: &Config, data: Option<&Data>) -> Result<(), TrainError> {
    let outline = match data {
        Some(data) => outline_step_of(task, config, data),
        None => outline_step(task, config),
    };
    match outline {
        Err(TrainError::Tensor(error @ TensorError::NoNumbers { .. })) => {
            tracing::info!("cuts are not checked before the first step: {error}");
            Ok(())
        }
        outline => outline.map(drop),
    }
}

/// As [`outline_step`], with data that is open.
fn outline_step_of(task: &Task, config: &Config, data: &Data) -> Result<StepOutline, TrainError> {
    let plan = data.plan(config)?;
    let first = RankBatch { rank: Some(0), ranks: config.data_ranks() };
    let samples = data.feed(config, &plan, &Distributed::none(), first, 0)?.next()?;
    let rank = |tensor| outline_rank(task, config, data.num_classes(), (&samples, tensor));
    let ranks = match config.tensor_ranks() {
        None => vec![rank(None)?],
        Some(ranks) => {
            (0..ranks).map(|at| rank(Some(TensorRank { rank: at, ranks }))).collect::<Result<_, _>>()?
        }
    };
    let samples = samples.micro_batches.iter().map(|micro_batch| micro_batch.batch.len()).sum();
    Ok(StepOutline { samples, ranks })
}

/// Runs the step as one rank.
fn outline_rank(
    task: &Task,
    config: &Config,
    classes: usize,
    (samples, tensor): (&StepSamples, Option<TensorRank>),
) -> Result<RankOutline, TrainError> {
    // Nothing is moved to a host.
    let mut config = config.clone();
    config.train.offload = Offload::None;
    let config = &config;
    let outlines = Outlines::new();
    let device = outlines.device();
    let target = BuildTarget { tensor, ..BuildTarget::whole(Weights::Placeholder, &device) };
    let built = task.build(config, Some(classes), target)?;
    let group = tensor.map(|TensorRank { rank, ranks }| Arc::new(OutlineGroup::new(rank, ranks)));
    let arithmetic = ArithmeticCount::default();
    let session = Session {
        recompute: precision::recompute(config),
        precision: config.train.precision,
        device,
        tensor_group: group.clone().map(|ranks| TensorGroup {
            ranks,
            splits_sequences: config.tensor.sequence,
            overlaps: false,
        }),
        arithmetic: arithmetic.clone(),
        ..Session::training(Arc::new(Context::new(1)), Key::new(config.train.seed))
    };
    let _ = take_peak_recorded_bytes();
    let mut has_split = false;
    for phase in 0..built.training.phases().len() {
        has_split |= run_phase(&built, phase, &session, samples)?;
    }
    if config.tensor.sequence && !has_split {
        return Err(TrainError::Setup(
            "tensor.sequence = true, and this training has no sequences that ranks could share: language models have, of as many tokens as \
             ranks or more"
                .to_owned(),
        ));
    }
    let usage = outlines.usage();
    let bytes = |count: usize| count as u64;
    Ok(RankOutline {
        operations: arithmetic.take(),
        parameters: bytes(usage.parameters),
        gradients: bytes(usage.gradients),
        activations: bytes(usage.peak_activations),
        recorded: bytes(take_peak_recorded_bytes()),
        traffic: group.map(|group| group.traffic()).unwrap_or_default(),
    })
}

/// Runs forward and backward of a phase on all micro-batches. Returns true if ranks had some positions of sequences.
fn run_phase(
    built: &Built,
    phase: usize,
    session: &Session,
    samples: &StepSamples,
) -> Result<bool, TrainError> {
    let phases = built.training.phases();
    let constants = phases[phase].constants(&built.networks);
    let mut has_split = false;
    for micro_batch in samples.micro_batches.iter().filter(|micro_batch| !micro_batch.batch.is_empty()) {
        let others = micro_batch.ranks;
        let batch_group =
            (others > 1).then(|| Arc::new(OutlineGroup::new(0, others)) as Arc<dyn ProcessGroup>);
        let tape = Tape::recording(Session {
            sample_offset: micro_batch.offset,
            batch_group,
            frozen: constants.clone(),
            ..session.clone()
        });
        let step = StepInput::new(&tape, &micro_batch.batch, samples.global_weight, 0, session.key);
        let loss = built.training.loss(phase, &step)?;
        tape.backward(&loss.value)?;
        has_split |= tape.has_split_sequences();
    }
    Ok(has_split)
}
