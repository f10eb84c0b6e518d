//! The outline of a step: what ranks compute, keep and send in it, found without numbers.

use std::sync::Arc;

use candle_core::DType;
use phalanx_sharding::pipeline::{Pipeline, StageForward, StagePasses};
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ArithmeticCount, ArrayError, Context, GroupTraffic, OutlineGroup, Session, StageRole, TensorError,
    TensorRank, take_peak_recorded_bytes,
};

use super::TrainError;
use super::data::Data;
use super::first_step::{FirstForward, FirstStep};
use super::stages::{Stages, schedule_of};
use super::training::{Built, StageTarget, Task};
use phalanx_config::Config;

/// The work, the memory and the messages of ranks in the first step.
#[derive(Debug, Clone)]
pub struct StepOutline {
    /// The samples of a rank.
    pub samples: usize,
    /// The number of ranks that compute parts of the same layers.
    pub tensor_ranks: usize,
    /// The ranks of the first part of the data, stage by stage: those that compute parts of the same layers follow each other.
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
    /// The bytes of values and gradients to other stages.
    pub to_stages: u64,
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
    let step = FirstStep::read(task, config, None)?;
    match config.pipeline_ranks() {
        1 => outline_step_of(&step),
        _ => outline_stages(&step, &Stages::of_step(&step)?),
    }
}

/// Tells layers that do not fit as they are cut, by a step without numbers, before a training begins; with `data` of the host, if it is
/// open. A training that reads numbers in its step is not checked.
pub(super) fn check_cuts(task: &Task, config: &Config, data: Option<&Data>) -> Result<(), TrainError> {
    match FirstStep::read(task, config, data).and_then(|step| outline_step_of(&step)) {
        Err(TrainError::Tensor(error @ TensorError::Array(ArrayError::NoNumbers { .. }))) => {
            tracing::info!("cuts are not checked before the first step: {error}");
            Ok(())
        }
        outline => outline.map(drop),
    }
}

/// Runs a first step as each of the ranks.
fn outline_step_of(step: &FirstStep<'_>) -> Result<StepOutline, TrainError> {
    let ranks = tensor_ranks(step).map(|tensor| outline_rank(step, tensor, None));
    outline_of(step, ranks.collect::<Result<_, _>>()?)
}

/// Runs a first step as each of the ranks of each stage.
fn outline_stages(step: &FirstStep<'_>, stages: &Stages) -> Result<StepOutline, TrainError> {
    let mut ranks = Vec::new();
    for rank in 0..step.config().pipeline_ranks() {
        for tensor in tensor_ranks(step) {
            ranks.push(outline_rank(step, tensor, Some((stages, rank)))?);
        }
    }
    outline_of(step, ranks)
}

fn outline_of(step: &FirstStep<'_>, ranks: Vec<RankOutline>) -> Result<StepOutline, TrainError> {
    let samples = step.micro_batches().map(|micro_batch| micro_batch.batch.len()).sum();
    Ok(StepOutline { samples, tensor_ranks: step.config().tensor_ranks().unwrap_or(1), ranks })
}

/// The ranks that compute parts of the same layers; one of whole layers if none do.
fn tensor_ranks(step: &FirstStep<'_>) -> impl Iterator<Item = Option<TensorRank>> + use<> {
    let ranks = step.config().tensor_ranks();
    (0..ranks.unwrap_or(1)).map(move |rank| ranks.map(|ranks| TensorRank { rank, ranks }))
}

/// Runs the step as one rank, of the whole model or of a stage.
fn outline_rank(
    step: &FirstStep<'_>,
    tensor: Option<TensorRank>,
    stage: Option<(&Stages, usize)>,
) -> Result<RankOutline, TrainError> {
    let outlines = Outlines::new();
    let device = outlines.device();
    let target = stage.map(|(stages, rank)| StageTarget { params: &stages.params, rank });
    let built = step.build(&device, tensor, target)?;
    let group = tensor.map(|TensorRank { rank, ranks }| Arc::new(OutlineGroup::new(rank, ranks)));
    let arithmetic = ArithmeticCount::default();
    let session = step.session(Arc::new(Context::new(1)), &device, group.clone());
    let session = Session { arithmetic: arithmetic.clone(), ..session };
    let _ = take_peak_recorded_bytes();
    let (mut has_split, mut to_stages) = (false, 0);
    for phase in 0..built.training.phases().len() {
        let mut passes = OutlinedPasses { step, built: &built, phase, session: &session, has_split: false };
        match stage {
            Some((stages, rank)) => {
                let schedule = schedule_of(step.config(), step.micro_batches().count())?;
                let pass = stages.passes[phase].clone();
                let pipeline = Pipeline::played(schedule, pass, rank, (&device, DType::F32))?;
                pipeline.run(&mut passes)?;
                to_stages += pipeline.traffic().bytes_sent;
            }
            None => passes.run_whole()?,
        }
        has_split |= passes.has_split;
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
        to_stages,
    })
}

/// A phase of a step without numbers.
struct OutlinedPasses<'a> {
    step: &'a FirstStep<'a>,
    built: &'a Built,
    phase: usize,
    session: &'a Session,
    /// True if ranks shared sequences.
    has_split: bool,
}

impl OutlinedPasses<'_> {
    /// Runs forward and backward of all micro-batches.
    fn run_whole(&mut self) -> Result<(), TrainError> {
        for micro_batch in self.step.micro_batches() {
            let of = (micro_batch, self.session);
            let FirstForward { tape, loss } = self.step.forward(self.built, self.phase, of)?;
            tape.backward(&loss)?;
            self.has_split |= tape.has_split_sequences();
        }
        Ok(())
    }
}

impl StagePasses for OutlinedPasses<'_> {
    type Error = TrainError;

    fn forward(&mut self, micro: usize, role: StageRole) -> Result<StageForward, TrainError> {
        let none = || TrainError::Setup(format!("the first step has no micro-batch {micro}"));
        let micro_batch = self.step.micro_batches().nth(micro).ok_or_else(none)?;
        let session = Session { stage: Some(role), ..self.session.clone() };
        let FirstForward { tape, loss } =
            self.step.forward(self.built, self.phase, (micro_batch, &session))?;
        self.has_split |= tape.has_split_sequences();
        Ok(StageForward { tape, loss })
    }

    fn before_backward(&mut self, _: usize, _: bool) {}
}
