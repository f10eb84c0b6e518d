//! A model of which a rank computes some layers, for benchmarks.

use std::sync::Arc;

use anyhow::Result;
use candle_core::DType;
use phalanx_collectives::Communicator;
use phalanx_sharding::ShardingError;
use phalanx_sharding::pipeline::{
    BlockOrder, BlockSeconds, CutCosts, DevicePairs, Pipeline, PipelineOptions, PipelineSchedule,
    SharedStages, StageForward, StageParams, StagePasses, TimedPasses, time_blocks,
};
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ComputeDevice, LossFactor, ParamLayout, ParamStore, Session, StageRole, Tape, TensorError, Value,
    ValueTrace,
};

/// Computes the loss of a micro-batch.
pub(crate) type Loss = Box<dyn Fn(&Tape) -> phalanx_tensor::Result<Value>>;

/// A model of which a rank computes some layers.
pub(crate) struct Stage {
    pub(crate) pipeline: Pipeline,
    pub(crate) store: ParamStore,
    pub(crate) shared: SharedStages,
    loss: Loss,
}

/// The conditions of a stage.
pub(crate) struct StageSetup<'a> {
    /// The ranks along the pipeline.
    pub(crate) comm: &'a Communicator,
    pub(crate) schedule: PipelineSchedule,
    /// The first block of each chunk but the first; empty: chunks of equal time, as the first rank measures it.
    pub(crate) first: &'a [String],
    /// The session of a pass.
    pub(crate) session: &'a Session,
}

impl Stage {
    /// Makes this rank's part of the model that `build` builds on a device, with these parameters.
    pub(crate) fn new(
        setup: StageSetup<'_>,
        build: impl Fn(&ComputeDevice, Option<Arc<dyn ParamLayout>>) -> Result<(ParamStore, Loss)>,
    ) -> Result<Self> {
        let StageSetup { comm, schedule, first, session } = setup;
        let (outlines, trace) = (Outlines::new().device(), ValueTrace::new());
        let (_store, loss) = build(&outlines, None)?;
        let stage = Some(StageRole::Trace(trace.clone()));
        loss(&Tape::recording(Session { device: outlines, stage, ..session.clone() }))?;
        let traced = trace.take();
        let order = BlockOrder::of(&[&traced])?;
        let first = match first.is_empty() {
            true => {
                let mut seconds = vec![0.0; order.len()];
                if comm.rank() == 0 {
                    let mut timed = Timed { build: &build, session };
                    let of = time_blocks(&mut timed, (&order, &[&traced]), (&session.device, DType::F32))?;
                    seconds = of.iter().map(BlockSeconds::all).collect();
                }
                comm.broadcast(&mut seconds, 0)?;
                let costs = CutCosts { blocks: seconds, byte: 0.0 };
                order.balanced(&[&traced], &costs, schedule.num_chunks())?
            }
            false => order.beginning_with(first)?,
        };
        let pass = order.divide(0, &traced, &first)?;
        let places = schedule.ranks_of_chunks()?;
        let mut params = StageParams::default();
        params.add(&pass, &places);
        let params = Arc::new(params);
        let shared = SharedStages::connect(comm, &params)?;
        let device = &session.device;
        let pairs = match device.is_host() {
            true => None,
            false => Some(DevicePairs::connect(comm, &[&pass], &places, device)?),
        };
        let options =
            PipelineOptions { dtype: DType::F32, first_channel: 1 << 16, clock: comm.clock(), pairs };
        let (store, loss) = build(device, Some(params.layout(comm.rank(), None)))?;
        let pipeline = Pipeline::new(comm.clone(), schedule, pass, options)?;
        Ok(Self { pipeline, store, shared, loss })
    }

    /// Computes the gradients of a step.
    pub(crate) fn gradients(&self, session: &Session, factor: LossFactor) -> Result<()> {
        Ok(self.pipeline.run(&mut Passes { loss: &self.loss, session, factor })?)
    }
}

/// A block at a time.
struct Timed<'a, B> {
    build: &'a B,
    session: &'a Session,
}

impl<B> TimedPasses for Timed<'_, B>
where
    B: Fn(&ComputeDevice, Option<Arc<dyn ParamLayout>>) -> Result<(ParamStore, Loss)>,
{
    type Error = PassError;
    type Model = (ParamStore, Loss);

    fn build(&mut self, params: &Arc<StageParams>, rank: usize) -> Result<Self::Model, PassError> {
        (self.build)(&self.session.device, Some(params.layout(rank, None))).map_err(PassError)
    }

    fn forward(&mut self, model: &Self::Model, _: usize, role: StageRole) -> Result<StageForward, PassError> {
        let tape = Tape::recording(Session { stage: Some(role), ..self.session.clone() });
        let loss = (model.1)(&tape)?;
        Ok(StageForward { tape, loss })
    }
}

/// The passes of a rank.
struct Passes<'a> {
    loss: &'a Loss,
    session: &'a Session,
    factor: LossFactor,
}

/// The errors of passes.
#[derive(Debug)]
struct PassError(anyhow::Error);

impl std::fmt::Display for PassError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for PassError {}

impl From<ShardingError> for PassError {
    fn from(error: ShardingError) -> Self {
        Self(error.into())
    }
}

impl From<TensorError> for PassError {
    fn from(error: TensorError) -> Self {
        Self(error.into())
    }
}

impl StagePasses for Passes<'_> {
    type Error = PassError;

    fn forward(&mut self, micro: usize, role: StageRole) -> Result<StageForward, PassError> {
        let key = self.session.key.index(micro as u64);
        let tape = Tape::recording(Session { stage: Some(role), key, ..self.session.clone() });
        let loss = (self.loss)(&tape)?;
        Ok(StageForward { tape, loss })
    }

    fn before_backward(&mut self, _: usize, _: bool) {}

    fn loss_factor(&self) -> LossFactor {
        self.factor.clone()
    }
}
