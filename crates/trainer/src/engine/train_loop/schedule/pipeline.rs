//! Pipelines: the micro-batches of a step follow each other through the stages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::DType;
use phalanx_collectives::Communicator;
use phalanx_run::{PassSummary, StagesSummary};
use phalanx_sharding::pipeline::{
    PassTotal, Pipeline, PipelineOptions, SharedStages, StageForward, StagePass, StagePasses,
};
use phalanx_sharding::{ReducedStep, StepGuard};
use phalanx_tensor::{LossFactor, ProcessGroup, Session, StageRole};

use super::{MicroBatchPass, MicroBatchSchedule, PhasePass, no_parts};
use crate::engine::TrainError;
use crate::engine::data::MicroBatch;
use crate::engine::distributed::{Network, Traffic};
use crate::engine::stages::{Stages, schedule_of};
use crate::engine::training::Measure;
use phalanx_config::Config;

/// The first channel of messages between stages; each phase has its own.
const FIRST_CHANNEL: u32 = 1 << 16;

/// The channels of a phase.
const CHANNELS: u32 = 1 << 12;

/// Runs micro-batches through the stages of a model.
#[derive(Debug)]
pub(super) struct PipelineMicroBatches {
    /// The ranks along the pipeline.
    comm: Communicator,
    stages: Arc<Stages>,
    config: Config,
    /// The ranks that hold some parameters together with this one.
    shared: SharedStages,
    /// By phase and number of micro-batches.
    made: Mutex<BTreeMap<(usize, usize), Arc<Pipeline>>>,
}

impl PipelineMicroBatches {
    /// Makes the pipelines of a rank. All ranks along the pipeline call this together.
    pub(super) fn new(comm: Communicator, stages: Arc<Stages>, config: &Config) -> Result<Self, TrainError> {
        let shared = SharedStages::connect(&comm, &stages.params)?;
        Ok(Self { comm, stages, config: config.clone(), shared, made: Mutex::default() })
    }

    /// Returns the pipeline of a phase for a number of micro-batches.
    fn of(&self, phase: usize, micros: usize) -> Result<Arc<Pipeline>, TrainError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = made.get(&(phase, micros)) {
            return Ok(pipeline.clone());
        }
        let schedule = schedule_of(&self.config, micros)?;
        let first_channel = FIRST_CHANNEL + CHANNELS * phase as u32;
        let (clock, pairs) = (self.config.comm.clock, self.stages.pairs.clone());
        let shared = Some(self.stages.shared(&self.comm));
        let options = PipelineOptions { dtype: DType::F32, first_channel, clock, pairs, shared };
        let pass = self.stages.passes[phase].clone();
        let pipeline = Arc::new(Pipeline::new(self.comm.clone(), schedule, pass, options)?);
        made.insert((phase, micros), pipeline.clone());
        Ok(pipeline)
    }
}

impl MicroBatchSchedule for PipelineMicroBatches {
    fn run(
        &self,
        pass: &PhasePass<'_>,
        guards: &mut [StepGuard<'_>],
    ) -> Result<Vec<Vec<Measure>>, TrainError> {
        let (state, micro_batches) = (pass.state, &pass.samples.micro_batches);
        let ranks = pass.distributed.data_size();
        let is_uneven = micro_batches.iter().any(|micro_batch| micro_batch.ranks < ranks);
        // Ranks without samples do not know the order in which others reduce several networks, so the reduction comes last.
        let overlaps = !is_uneven || state.updated(pass.phase).count() == 1;
        let groups = state.updated(pass.phase).next().map(Network::batch_groups).unwrap_or_default();
        let mut present = Vec::new();
        for micro_batch in micro_batches.iter().filter(|micro_batch| micro_batch.ranks > 0) {
            // All ranks create the group.
            let batch_group = groups.first(micro_batch.ranks)?;
            if !micro_batch.batch.is_empty() {
                present.push(Present { micro_batch, batch_group });
            }
        }
        guards.iter_mut().for_each(|guard| guard.micro_batch(!overlaps));
        let mut parts = no_parts(pass.numbers());
        // Ranks without samples cannot gather parameters block by block with the others.
        let gathered = pass.gather(is_uneven)?;
        if present.is_empty() {
            gathered.release()?;
            return Ok(parts);
        }
        let pipeline = self.of(pass.phase, present.len())?;
        let mut run = PhaseRun {
            passes: pass.micro_batches()?,
            present,
            guards,
            overlaps,
            numbers: pass.numbers(),
            measured: BTreeMap::new(),
        };
        pipeline.run(&mut run)?;
        gathered.release()?;
        for measured in run.measured.into_values() {
            parts.iter_mut().zip(measured).for_each(|(parts, part)| parts.push(part));
        }
        Ok(parts)
    }

    fn complete(&self, reduced: &[ReducedStep<'_>]) -> Result<(), TrainError> {
        Ok(self.shared.sum_grads(reduced.iter().flat_map(ReducedStep::params))?)
    }

    /// Each number is that of the last stage that has it.
    fn sums(&self, parts: Vec<Vec<Measure>>) -> Result<Vec<f64>, TrainError> {
        let mut own = Vec::with_capacity(2 * parts.len());
        for parts in parts {
            let is_here = !parts.iter().any(Measure::is_elsewhere);
            let sum = match is_here {
                true => parts.into_iter().map(Measure::take).sum::<Result<f64, _>>()?,
                false => 0.0,
            };
            own.extend([f64::from(u8::from(is_here)), sum]);
        }
        let all = self.comm.all_gather(&own)?;
        let number = |at: usize| {
            let of_ranks = all.chunks_exact(own.len().max(1)).rev();
            of_ranks
                .map(|of| (of[2 * at], of[2 * at + 1]))
                .find(|(is_here, _)| *is_here > 0.0)
                .map_or(0.0, |(_, sum)| sum)
        };
        Ok((0..own.len() / 2).map(number).collect())
    }

    /// The messages between stages.
    fn traffic(&self) -> Traffic {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.values().fold(Traffic::default(), |sum, pipeline| sum + pipeline.traffic().into())
    }

    fn stages(&self) -> Option<StagesSummary> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums: BTreeMap<(usize, StagePass), PassSummary> = BTreeMap::new();
        for PassTotal { chunk, pass, passes, time } in made.values().flat_map(|made| made.pass_totals()) {
            let sum = sums.entry((chunk, pass)).or_insert_with(|| PassSummary {
                stage: chunk,
                pass: pass.to_string(),
                ..PassSummary::default()
            });
            sum.passes += passes;
            sum.seconds += time.as_secs_f64();
        }
        let waited = made.values().map(|pipeline| pipeline.traffic().waited.as_secs_f64());
        Some(StagesSummary { waited_seconds: waited.sum(), passes: sums.into_values().collect() })
    }

    fn virtual_ranks(&self) -> Range<usize> {
        0..0
    }
}

/// A micro-batch with samples for this rank.
struct Present<'a> {
    micro_batch: &'a MicroBatch,
    /// The ranks with samples of it.
    batch_group: Option<Arc<dyn ProcessGroup>>,
}

/// A phase of a step on this rank.
struct PhaseRun<'a, 'g> {
    passes: MicroBatchPass<'a>,
    present: Vec<Present<'a>>,
    guards: &'a mut [StepGuard<'g>],
    /// True if gradients are reduced during the last backward pass.
    overlaps: bool,
    /// The number of measures, the loss included.
    numbers: usize,
    /// By micro-batch, its parts of the loss and of each measure.
    measured: BTreeMap<usize, Vec<Measure>>,
}

impl StagePasses for PhaseRun<'_, '_> {
    type Error = TrainError;

    fn forward(&mut self, micro: usize, role: StageRole) -> Result<StageForward, TrainError> {
        let Present { micro_batch, batch_group } = &self.present[micro];
        let session = Session { stage: Some(role), ..self.passes.session(micro_batch, batch_group.clone()) };
        let mut parts = no_parts(self.numbers);
        let forward = self.passes.forward(micro_batch, session, &mut parts)?;
        let known = self.measured.entry(micro).or_default();
        known.resize_with(self.numbers, Measure::elsewhere);
        // Of the chunks of this rank the last one that has a number.
        for (known, mut part) in known.iter_mut().zip(parts) {
            if let Some(part) = part.pop().filter(|part| !part.is_elsewhere()) {
                *known = part;
            }
        }
        Ok(forward)
    }

    fn before_backward(&mut self, _: usize, more: bool) {
        let waits = more || !self.overlaps;
        self.guards.iter_mut().for_each(|guard| guard.micro_batch(waits));
    }

    fn loss_factor(&self) -> LossFactor {
        self.passes.factor.clone()
    }
}
