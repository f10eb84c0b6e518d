//! Schedules: the order of forward and backward passes over the micro-batches of a step.

mod accumulation;
mod pipeline;
mod virtual_ranks;

use std::ops::Range;
use std::sync::Arc;

use phalanx_run::StagesSummary;
use phalanx_sharding::pipeline::StageForward;
use phalanx_sharding::{ReducedStep, StepGuard};
use phalanx_tensor::{Key, Listener, LossFactor, ProcessGroup, Session, Tape};

use self::accumulation::GradientAccumulation;
use self::pipeline::PipelineMicroBatches;
use self::virtual_ranks::VirtualRankSchedule;
use super::environment::Environment;
use super::state::TrainState;
use crate::engine::data::{MicroBatch, StepSamples};
use crate::engine::distributed::{Distributed, Network, Traffic};
use crate::engine::training::{AnyTraining, Loss, Measure, StepInput};
use crate::engine::{TrainError, precision};

/// An order of forward and backward passes over a rank's micro-batches.
pub(super) trait MicroBatchSchedule {
    /// Runs forward and backward of a phase on all micro-batches. Starts the reduction of gradients once they are complete; `guards`
    /// are those of the networks that the phase updates.
    ///
    /// Returns of the loss and of each measure its parts, which a device may still compute.
    fn run(
        &self,
        pass: &PhasePass<'_>,
        guards: &mut [StepGuard<'_>],
    ) -> Result<Vec<Vec<Measure>>, TrainError>;

    /// Completes reduced gradients: those of parameters that several stages hold are sums over these.
    fn complete(&self, reduced: &[ReducedStep<'_>]) -> Result<(), TrainError> {
        let _ = reduced;
        Ok(())
    }

    /// Waits for the parts that [`MicroBatchSchedule::run`] returned and adds them up: one number for each, or one for each and each
    /// virtual rank.
    fn sums(&self, parts: Vec<Vec<Measure>>) -> Result<Vec<f64>, TrainError>;

    /// The communication of the schedule itself so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// The passes of this rank's stages so far; none if the model has none.
    fn stages(&self) -> Option<StagesSummary> {
        None
    }

    /// The virtual ranks of this rank; empty if there are none.
    fn virtual_ranks(&self) -> Range<usize>;
}

/// Chooses the schedule of a configuration in the present world.
pub(super) fn schedule(
    env: &Environment<'_>,
    distributed: &Distributed,
) -> Result<Box<dyn MicroBatchSchedule>, TrainError> {
    if let Some((stages, comm)) = env.stages.clone().zip(distributed.pipeline()) {
        return Ok(Box::new(PipelineMicroBatches::new(comm.clone(), stages, env.config)?));
    }
    Ok(match env.virtual_ranks(distributed)? {
        Some(placed) => Box::new(VirtualRankSchedule::new(placed, distributed.data_rank())),
        None => Box::new(GradientAccumulation),
    })
}

/// A phase of a step on this rank's samples.
pub(super) struct PhasePass<'a> {
    pub(super) env: &'a Environment<'a>,
    pub(super) distributed: &'a Distributed,
    pub(super) state: &'a TrainState,
    pub(super) samples: &'a StepSamples,
    /// The index of the phase.
    pub(super) phase: usize,
}

impl PhasePass<'_> {
    /// The number of measures, the loss included.
    fn numbers(&self) -> usize {
        1 + self.state.training.phases()[self.phase].measures.len()
    }

    /// Gathers all parameters that are sharded, if ranks cannot gather them block by block together.
    fn gather(&self, wanted: bool) -> Result<GatheredParameters<'_>, TrainError> {
        let gathered = GatheredParameters { state: self.state, wanted };
        gathered.networks().try_for_each(Network::unshard)?;
        Ok(gathered)
    }

    /// The passes of micro-batches, which any thread may run.
    fn micro_batches(&self) -> Result<MicroBatchPass<'_>, TrainError> {
        let Self { env, state, samples, phase, .. } = *self;
        let phases = state.training.phases();
        let stream = env.key.stream("train");
        let named = if phases.len() > 1 { stream.stream(&phases[phase].name) } else { stream };
        Ok(MicroBatchPass {
            env,
            training: &*state.training,
            phase,
            step: state.step,
            global_weight: samples.global_weight,
            key: named.step(state.step),
            shared_key: stream.step(state.step),
            listener: state.listener(),
            constants: state.constants(phase),
            factor: state.loss_factor(phase)?,
        })
    }
}

/// Sharded parameters that are whole while a phase runs.
struct GatheredParameters<'a> {
    state: &'a TrainState,
    wanted: bool,
}

impl GatheredParameters<'_> {
    fn networks(&self) -> impl Iterator<Item = &Network> {
        self.state.networks().filter(|network| self.wanted && network.gathers())
    }

    /// Frees the parts of other ranks.
    fn release(self) -> Result<(), TrainError> {
        self.networks().try_for_each(Network::reshard)
    }
}

/// Forward and backward of a phase on one micro-batch.
struct MicroBatchPass<'a> {
    env: &'a Environment<'a>,
    training: &'a dyn AnyTraining,
    phase: usize,
    /// The step, counted from 0.
    step: u64,
    /// The divisor of losses.
    global_weight: f64,
    key: Key,
    /// The random stream that the phases of a step share.
    shared_key: Key,
    listener: Option<Arc<dyn Listener>>,
    /// Prefixes of the parameters that are constants in this phase.
    constants: Arc<[String]>,
    factor: LossFactor,
}

impl MicroBatchPass<'_> {
    /// A session for a micro-batch whose statistics are shared within `batch_group`.
    fn session(&self, micro_batch: &MicroBatch, batch_group: Option<Arc<dyn ProcessGroup>>) -> Session {
        let config = self.env.config;
        Session {
            sample_offset: micro_batch.offset,
            listener: self.listener.clone(),
            batch_group,
            recompute: precision::recompute(config),
            precision: config.train.precision,
            device: self.env.device.clone(),
            tensor_group: self.env.tensor_group.clone(),
            frozen: self.constants.clone(),
            arithmetic: self.env.arithmetic.clone(),
            ..Session::training(self.env.context.clone(), self.key)
        }
    }

    /// Runs forward and backward. Adds the loss and each measure to `parts`.
    fn run(
        &self,
        micro_batch: &MicroBatch,
        session: Session,
        parts: &mut [Vec<Measure>],
    ) -> Result<(), TrainError> {
        let StageForward { tape, loss } = self.forward(micro_batch, session, parts)?;
        let backward = tracing::trace_span!(target: "phalanx_trace::compute", "backward");
        Ok(backward.in_scope(|| tape.backward_scaled(&loss, self.factor.clone()))?)
    }

    /// Runs forward. Adds the loss and each measure to `parts`.
    fn forward(
        &self,
        micro_batch: &MicroBatch,
        session: Session,
        parts: &mut [Vec<Measure>],
    ) -> Result<StageForward, TrainError> {
        let tape = Tape::recording(session);
        let step = StepInput::new(&tape, &micro_batch.batch, self.global_weight, self.step, self.shared_key)
            .with_notices(&self.env.notices);
        let forward = tracing::trace_span!(target: "phalanx_trace::compute", "forward");
        let Loss { value: loss, measures } = forward.in_scope(|| self.training.loss(self.phase, &step))?;
        let measured = std::iter::once(Measure::of(&loss)?).chain(measures);
        parts.iter_mut().zip(measured).for_each(|(parts, part)| parts.push(part));
        Ok(StageForward { tape, loss })
    }
}

/// Returns an empty list of parts for each number.
fn no_parts(numbers: usize) -> Vec<Vec<Measure>> {
    std::iter::repeat_with(Vec::new).take(numbers).collect()
}
