//! A model of which a rank computes some blocks, for training loops of one's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::DType;
use phalanx_collectives::Communicator;
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    Array, ComputeDevice, LossFactor, ParamBucket, ParamLayout, ParamStore, Session, StageRole, Tape,
    TensorError, TracedPass, Value, ValueTrace,
};

use super::block_times::{BlockSeconds, TimedPasses, time_blocks};
use super::device_pairs::DevicePairs;
use super::links::PipelineOptions;
use super::order::{BlockOrder, CutCosts};
use super::run::{Pipeline, StageForward, StagePasses};
use super::schedule::PipelineSchedule;
use super::shared_stages::SharedStages;
use super::sharing::shared_blocks;
use super::stage_params::StageParams;
use crate::{Result, ShardingError};

/// The first channel of messages between stages.
const FIRST_CHANNEL: u32 = 1 << 16;

/// Computes the loss of a micro-batch, by its number.
pub type StageLoss = Box<dyn Fn(&Tape, usize) -> phalanx_tensor::Result<Value>>;

/// A model on a device.
pub struct BuiltModel {
    /// Its parameters.
    pub store: ParamStore,
    /// Its loss.
    pub loss: StageLoss,
}

impl std::fmt::Debug for BuiltModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltModel").field("store", &self.store).finish_non_exhaustive()
    }
}

/// The way in which a model is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageCut<'a> {
    /// Into chunks of equally many operations.
    Operations,
    /// Into chunks of equal time, as the first rank measures it ([`time_blocks`]).
    Time,
    /// The first block of each chunk but the first.
    Blocks(&'a [String]),
}

/// The conditions of a model in stages.
#[derive(Debug)]
pub struct StagedSetup<'a> {
    /// The ranks along the pipeline.
    pub comm: &'a Communicator,
    /// The order of passes.
    pub schedule: PipelineSchedule,
    /// The way in which the model is cut.
    pub cut: StageCut<'a>,
    /// The session of passes: their device, precision and recomputation.
    pub session: &'a Session,
}

/// A model of which this rank computes some blocks.
#[derive(Debug)]
pub struct StagedModel {
    pipeline: Pipeline,
    built: BuiltModel,
    shared: SharedStages,
}

impl StagedModel {
    /// Makes this rank's part of the model that `build` builds on a device with a layout of its parameters. All ranks along the pipeline
    /// call this together. `build` is called several times: on outlines, to find the stages, and on the device of the session.
    ///
    /// # Errors
    /// Errors of `build`; [`ShardingError::Pipeline`] and [`ShardingError::Schedule`] if the model or the schedule have no such stages.
    pub fn new<E: From<ShardingError> + From<TensorError>>(
        setup: StagedSetup<'_>,
        build: impl Fn(&ComputeDevice, Option<Arc<dyn ParamLayout>>) -> Result<BuiltModel, E>,
    ) -> Result<Self, E> {
        let StagedSetup { comm, schedule, cut, session } = setup;
        let traced = trace(session, &build)?;
        let passes = [&traced];
        let (order, chunks) = (BlockOrder::of(&passes)?, schedule.num_chunks());
        let dtype = traced.values.iter().find(|value| value.param.is_some()).map(|value| value.dtype);
        let dtype = dtype.unwrap_or(DType::F32);
        let first = match cut {
            StageCut::Operations => order.balanced(&passes, &order.operations(), chunks)?,
            StageCut::Blocks(first) => order.beginning_with(first)?,
            StageCut::Time => {
                let mut blocks = vec![0.0; order.len()];
                if comm.rank() == 0 {
                    let mut timed = Timed { build: &build, session };
                    let seconds = time_blocks(&mut timed, (&order, &passes), (&session.device, dtype))?;
                    blocks = seconds.iter().map(BlockSeconds::all).collect();
                }
                comm.broadcast(&mut blocks, 0).map_err(ShardingError::from)?;
                order.balanced(&passes, &CutCosts { blocks, byte: 0.0 }, chunks)?
            }
        };
        let pass = order.divide(0, &traced, &first)?;
        let places = schedule.ranks_of_chunks()?;
        let mut params = StageParams::default();
        params.add(&pass, &places);
        let params = Arc::new(params);
        let shared = SharedStages::connect(comm, &params)?;
        let pairs = match session.device.is_host() {
            true => None,
            false => Some(DevicePairs::connect(comm, &[&pass], &places, &session.device)?),
        };
        let reads = Some(shared_blocks(comm, &params, dtype));
        let options = PipelineOptions {
            dtype,
            first_channel: FIRST_CHANNEL,
            clock: comm.clock(),
            pairs,
            shared: reads,
        };
        let built = build(&session.device, Some(params.layout(comm.rank(), None)))?;
        let pipeline = Pipeline::new(comm.clone(), schedule, pass, options)?;
        Ok(Self { pipeline, built, shared })
    }

    /// The parameters. Those of other stages have names and shapes only.
    pub fn store(&self) -> &ParamStore {
        &self.built.store
    }

    /// The passes of this rank: their seconds, and the messages.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Computes the gradients of a step, and adds them to those of the parameters; `session` is that of a micro-batch, by its number.
    /// Returns the losses of the micro-batches on the rank that computes them, and none on the others. All ranks call this together.
    ///
    /// # Errors
    /// Errors of the passes, and [`ShardingError::Pipeline`] naming the message that cannot come or go.
    pub fn gradients(&self, session: impl Fn(usize) -> Session, factor: LossFactor) -> Result<Vec<Array>> {
        let mut passes = Passes { loss: &self.built.loss, session, factor, losses: BTreeMap::new() };
        self.pipeline.run(&mut passes)?;
        Ok(passes.losses.into_values().collect())
    }

    /// Adds up the gradients of parameters that several stages hold, before an update. All ranks call this together.
    ///
    /// # Errors
    /// Errors of the transport.
    pub fn sum_shared_grads<'a>(
        &self,
        params: impl IntoIterator<Item = &'a ParamBucket>,
    ) -> phalanx_tensor::Result<()> {
        self.shared.sum_grads(params)
    }
}

/// Runs the loss once without numbers.
fn trace<E: From<ShardingError> + From<TensorError>>(
    session: &Session,
    build: &impl Fn(&ComputeDevice, Option<Arc<dyn ParamLayout>>) -> Result<BuiltModel, E>,
) -> Result<TracedPass, E> {
    let (device, trace) = (Outlines::new().device(), ValueTrace::new());
    let model = build(&device, None)?;
    let stage = Some(StageRole::Trace(trace.clone()));
    (model.loss)(&Tape::recording(Session { device, stage, ..session.clone() }), 0)?;
    Ok(trace.take())
}

/// A block at a time.
struct Timed<'a, B> {
    build: &'a B,
    session: &'a Session,
}

impl<B, E> TimedPasses for Timed<'_, B>
where
    E: From<ShardingError> + From<TensorError>,
    B: Fn(&ComputeDevice, Option<Arc<dyn ParamLayout>>) -> Result<BuiltModel, E>,
{
    type Error = E;
    type Model = BuiltModel;

    fn build(&mut self, params: &Arc<StageParams>, rank: usize) -> Result<BuiltModel, E> {
        (self.build)(&self.session.device, Some(params.layout(rank, None)))
    }

    fn forward(&mut self, model: &BuiltModel, _: usize, role: StageRole) -> Result<StageForward, E> {
        let tape = Tape::recording(Session { stage: Some(role), ..self.session.clone() });
        let loss = (model.loss)(&tape, 0)?;
        Ok(StageForward { tape, loss })
    }
}

/// The passes of a step.
struct Passes<'a, S> {
    loss: &'a StageLoss,
    session: S,
    factor: LossFactor,
    /// By micro-batch.
    losses: BTreeMap<usize, Array>,
}

impl<S: Fn(usize) -> Session> StagePasses for Passes<'_, S> {
    type Error = ShardingError;

    fn forward(&mut self, micro: usize, role: StageRole) -> Result<StageForward> {
        let tape = Tape::recording(Session { stage: Some(role), ..(self.session)(micro) });
        let loss = (self.loss)(&tape, micro)?;
        if tape.computes(&loss) {
            self.losses.insert(micro, loss.array()?);
        }
        Ok(StageForward { tape, loss })
    }

    fn before_backward(&mut self, _: usize, _: bool) {}

    fn loss_factor(&self) -> LossFactor {
        self.factor.clone()
    }
}
