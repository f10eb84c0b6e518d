//! The stages of a training: its passes, traced without numbers and divided into chunks.

mod measured;
mod trace;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::Communicator;
use phalanx_sharding::pipeline::{
    BlockOrder, DevicePairs, DividedPass, Pipeline, PipelineOptions, PipelineSchedule, StageForward,
    StageParams, StagePasses, shared_blocks,
};
use phalanx_tensor::{ComputeDevice, Session, StageRole, StageShare, Tape, TensorError, TracedPass, Value};

pub use self::measured::{MeasuredBlock, MeasuredStages, measure_stages};
use self::trace::{Traced, reads_outline, traced};
use super::TrainError;
use super::data::Data;
use super::first_step::FirstStep;
use super::training::{Evaluated, Task};
use phalanx_config::Config;

/// The stages of a training.
#[derive(Debug)]
pub(in crate::engine) struct Stages {
    /// By phase, its pass.
    pub(in crate::engine) passes: Vec<DividedPass>,
    /// The pass of an evaluation; none if there are no evaluations, or if they read numbers between passes.
    evaluation: Option<DividedPass>,
    /// The parameters of each stage.
    pub(in crate::engine) params: Arc<StageParams>,
    /// The ways of messages between GPUs; none on CPUs.
    pub(in crate::engine) pairs: Option<Arc<DevicePairs>>,
}

impl Stages {
    /// Traces the phases of a training and divides them; `None` if the model has no stages. Reads the samples of the first step.
    pub(in crate::engine) fn of(
        task: &Task,
        config: &Config,
        data: Option<&Data>,
    ) -> Result<Option<Self>, TrainError> {
        match config.pipeline_ranks() {
            1 => Ok(None),
            _ => Self::of_step(&FirstStep::read(task, config, data)?).map(Some),
        }
    }

    /// Traces the phases of a first step of a model in stages, and divides them.
    pub(in crate::engine) fn of_step(step: &FirstStep<'_>) -> Result<Self, TrainError> {
        let config = step.config();
        let schedule = config.pipeline_schedule(config.micro_batches())?;
        let places = schedule.ranks_of_chunks()?;
        let Traced { phases, evaluation } = traced(step)?;
        let all: Vec<&TracedPass> = phases.iter().chain(&evaluation).collect();
        let order = BlockOrder::of(&all)?;
        let first = first_blocks(&order, &phases.iter().collect::<Vec<_>>(), config, schedule.num_chunks())?;
        let (mut passes, mut params) = (Vec::new(), StageParams::default());
        for (at, pass) in all.into_iter().enumerate() {
            let pass = order.divide(at, pass, &first)?;
            params.add(&pass, &places);
            passes.push(pass);
        }
        let evaluation = match &evaluation {
            Some(pass) => passes.pop().map(|divided| divided.with_numbers_at_the_end(pass)),
            None => None,
        };
        Ok(Self { passes, evaluation, params: Arc::new(params), pairs: None })
    }

    /// Connects the ranks along the pipeline, those of `comm`, for arrays on their devices. All ranks call this together.
    pub(in crate::engine) fn connected(
        self,
        comm: &Communicator,
        config: &Config,
        device: &ComputeDevice,
    ) -> Result<Self, TrainError> {
        if device.is_host() {
            return Ok(self);
        }
        let places = config.pipeline_schedule(config.micro_batches())?.ranks_of_chunks()?;
        let passes: Vec<&DividedPass> = self.passes.iter().chain(&self.evaluation).collect();
        let pairs = Some(DevicePairs::connect(comm, &passes, &places, device)?);
        Ok(Self { pairs, ..self })
    }

    /// Returns the part of passes without backward that are not traced: evaluations that read numbers, and samples.
    pub(in crate::engine) fn shared(&self, comm: &Communicator) -> Arc<StageShare> {
        shared_blocks(comm, &self.params, DType::F32)
    }

    /// Returns one rank's part in evaluations.
    pub(in crate::engine) fn evaluation(
        &self,
        comm: &Communicator,
        config: &Config,
    ) -> Result<Option<StagedEvaluation>, TrainError> {
        let Some(pass) = &self.evaluation else { return Ok(None) };
        let schedule = schedule_of(config, 1)?;
        let last = schedule.num_chunks() - 1;
        let clock = config.comm.clock;
        let (first_channel, pairs) = (EVALUATION_CHANNEL, self.pairs.clone());
        let shared = Some(self.shared(comm));
        let options = PipelineOptions { dtype: DType::F32, first_channel, clock, pairs, shared };
        let pipeline = Pipeline::new(comm.clone(), schedule, pass.clone(), options)?;
        Ok(Some(StagedEvaluation { pipeline, last }))
    }
}

/// The first channel of messages of evaluations.
const EVALUATION_CHANNEL: u32 = 1 << 15;

/// Returns the schedule of the configuration for a number of micro-batches. Of fewer than it has, the others are left out.
pub(in crate::engine) fn schedule_of(config: &Config, micros: usize) -> Result<PipelineSchedule, TrainError> {
    let mut schedule = config.pipeline_schedule(config.micro_batches().max(micros))?;
    for works in &mut schedule.ranks {
        works.retain(|work| work.micro < micros);
    }
    Ok(schedule)
}

/// Evaluations through the stages.
#[derive(Debug)]
pub(in crate::engine) struct StagedEvaluation {
    pipeline: Pipeline,
    /// The last chunk, which has the results.
    last: usize,
}

impl StagedEvaluation {
    /// Evaluates a batch. Returns the results on the rank that computes them.
    pub(in crate::engine) fn run(
        &self,
        session: &Session,
        evaluate: impl FnMut(&Tape) -> Result<Evaluated, TrainError>,
    ) -> Result<Option<Evaluated>, TrainError> {
        let mut run = EvaluationRun { session, evaluate, last: self.last, evaluated: None };
        self.pipeline.run_forward(&mut run)?;
        Ok(run.evaluated)
    }
}

/// An evaluation of a batch.
struct EvaluationRun<'a, F> {
    session: &'a Session,
    evaluate: F,
    last: usize,
    evaluated: Option<Evaluated>,
}

impl<F: FnMut(&Tape) -> Result<Evaluated, TrainError>> StagePasses for EvaluationRun<'_, F> {
    type Error = TrainError;

    fn forward(&mut self, _: usize, role: StageRole) -> Result<StageForward, TrainError> {
        let has_results = matches!(&role, StageRole::Run(run) if run.plan.chunk == self.last);
        let tape = Tape::forward_only(Session { stage: Some(role), ..self.session.clone() });
        match (self.evaluate)(&tape) {
            Ok(evaluated) if has_results => self.evaluated = Some(evaluated),
            Ok(_) => {}
            Err(error) if !has_results && reads_outline(&error) => {}
            Err(error) => return Err(error),
        }
        let loss = Value::constant(Tensor::new(0.0_f32, &Device::Cpu).map_err(TensorError::from)?);
        Ok(StageForward { tape, loss })
    }

    fn before_backward(&mut self, _: usize, _: bool) {}
}

/// Returns the place of the first block of each chunk.
fn first_blocks(
    order: &BlockOrder,
    phases: &[&TracedPass],
    config: &Config,
    chunks: usize,
) -> Result<Vec<usize>, TrainError> {
    let named = &config.pipeline.stages;
    match named.len() {
        0 => Ok(order.balanced(phases, &order.operations(), chunks)?),
        number if number + 1 == chunks => Ok(order.beginning_with(named)?),
        number => Err(TrainError::Setup(format!(
            "pipeline.stages has the first blocks of {number} chunks, and there are {chunks}: name one for each but the first"
        ))),
    }
}
