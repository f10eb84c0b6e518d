//! The outline of a step: what ranks compute, keep and send in it, found without numbers.

use std::sync::Arc;

use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ArithmeticCount, Context, GroupTraffic, OutlineGroup, Session, TensorError, TensorRank,
    take_peak_recorded_bytes,
};

use super::TrainError;
use super::data::Data;
use super::first_step::{FirstForward, FirstStep};
use super::training::Task;
use crate::config::Config;

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
    outline_step_of(&FirstStep::read(task, config, None)?)
}

/// Tells layers that do not fit as they are cut, by a step without numbers, before a training begins; with `data` of the host, if it is
/// open. A training that reads numbers in its step is not checked.
pub(super) fn check_cuts(task: &Task, config: &Config, data: Option<&Data>) -> Result<(), TrainError> {
    match FirstStep::read(task, config, data).and_then(|step| outline_step_of(&step)) {
        Err(TrainError::Tensor(error @ TensorError::NoNumbers { .. })) => {
            tracing::info!("cuts are not checked before the first step: {error}");
            Ok(())
        }
        outline => outline.map(drop),
    }
}

/// Runs a first step as each of the ranks.
fn outline_step_of(step: &FirstStep<'_>) -> Result<StepOutline, TrainError> {
    let ranks = match step.config().tensor_ranks() {
        None => vec![outline_rank(step, None)?],
        Some(ranks) => (0..ranks)
            .map(|rank| outline_rank(step, Some(TensorRank { rank, ranks })))
            .collect::<Result<_, _>>()?,
    };
    let samples = step.micro_batches().map(|micro_batch| micro_batch.batch.len()).sum();
    Ok(StepOutline { samples, ranks })
}

/// Runs the step as one rank.
fn outline_rank(step: &FirstStep<'_>, tensor: Option<TensorRank>) -> Result<RankOutline, TrainError> {
    let outlines = Outlines::new();
    let device = outlines.device();
    let built = step.build(&device, tensor, None)?;
    let group = tensor.map(|TensorRank { rank, ranks }| Arc::new(OutlineGroup::new(rank, ranks)));
    let arithmetic = ArithmeticCount::default();
    let session = step.session(Arc::new(Context::new(1)), &device, group.clone());
    let session = Session { arithmetic: arithmetic.clone(), ..session };
    let _ = take_peak_recorded_bytes();
    let mut has_split = false;
    for phase in 0..built.training.phases().len() {
        for micro_batch in step.micro_batches() {
            let FirstForward { tape, loss } = step.forward(&built, phase, (micro_batch, &session))?;
            tape.backward(&loss)?;
            has_split |= tape.has_split_sequences();
        }
    }
    if step.config().tensor.sequence && !has_split {
        return Err(TrainError::Setup(
            "tensor.sequence = true, and this training has no sequences that ranks could share: language models and Vision \
             Transformers have, of as many positions as ranks or more"
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
