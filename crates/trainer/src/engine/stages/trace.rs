//! Traces of a training's passes, from the samples of its first step.

use std::sync::Arc;

use phalanx_sharding::pipeline::StageForward;
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ComputeDevice, Context, Key, OutlineGroup, ProcessGroup, Recompute, Session, StageRole, Tape,
    TensorError, TensorGroup, TensorRank, TracedPass, ValueTrace,
};

use crate::config::{Config, Offload};
use crate::engine::data::{Data, MicroBatch, StepSamples};
use crate::engine::distributed::{Distributed, RankBatch};
use crate::engine::training::{BuildTarget, Built, StageTarget, StepInput, Task, Weights};
use crate::engine::{TrainError, precision};

/// The first micro-batch with samples, and how to compute with it.
pub(super) struct FirstStep<'a> {
    task: &'a Task,
    config: Config,
    classes: usize,
    samples: StepSamples,
    /// The place of the micro-batch among the samples.
    micro: usize,
}

/// The passes of a training.
pub(super) struct Traced {
    pub(super) phases: Vec<TracedPass>,
    /// None if there are no evaluations, or if they read numbers between passes.
    pub(super) evaluation: Option<TracedPass>,
}

impl<'a> FirstStep<'a> {
    /// Reads the samples of the first step; opens the data if they are not given.
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
        let mut config = config.clone();
        config.train.offload = Offload::None;
        match samples.micro_batches.iter().position(|micro_batch| !micro_batch.batch.is_empty()) {
            Some(micro) => Ok(Self { task, config, classes: data.num_classes(), samples, micro }),
            None => Err(TrainError::Setup("the first step has no samples to find stages with".to_owned())),
        }
    }

    fn micro_batch(&self) -> &MicroBatch {
        &self.samples.micro_batches[self.micro]
    }

    /// This rank among those that share layers: the first one, if ranks do.
    fn tensor_rank(&self) -> Option<TensorRank> {
        self.config.tensor_ranks().map(|ranks| TensorRank { rank: 0, ranks })
    }

    /// Builds the networks, or a stage of them.
    pub(super) fn build(
        &self,
        device: &ComputeDevice,
        stage: Option<StageTarget<'_>>,
    ) -> Result<Built, TrainError> {
        let tensor = self.tensor_rank();
        let target = BuildTarget { tensor, stage, ..BuildTarget::whole(Weights::Placeholder, device) };
        self.task.build(&self.config, Some(self.classes), target)
    }

    /// A session of the step; other ranks are played.
    pub(super) fn session(&self, context: Arc<Context>, device: &ComputeDevice, role: StageRole) -> Session {
        let config = &self.config;
        Session {
            recompute: precision::recompute(config),
            precision: config.train.precision,
            device: device.clone(),
            tensor_group: self.tensor_rank().map(|TensorRank { rank, ranks }| TensorGroup {
                ranks: Arc::new(OutlineGroup::new(rank, ranks)),
                splits_sequences: config.tensor.sequence,
                overlaps: false,
            }),
            stage: Some(role),
            ..Session::training(context, Key::new(config.train.seed))
        }
    }

    /// Traces the phases, and an evaluation of the samples.
    pub(super) fn traced(&self) -> Result<Traced, TrainError> {
        let (outlines, trace) = (Outlines::new(), ValueTrace::new());
        let device = outlines.device();
        let built = self.build(&device, None)?;
        let session = self.session(Arc::new(Context::new(1)), &device, StageRole::Trace(trace.clone()));
        let pass = |phase| {
            self.run_phase(&built, phase, &session)?;
            Ok(trace.take())
        };
        let phases = (0..built.training.phases().len()).map(pass).collect::<Result<_, TrainError>>()?;
        let evaluation = match self.config.eval.enabled {
            true => {
                let session = Session { training: false, recompute: Recompute::Never, ..session };
                traced_evaluation(&built, &session, (&trace, &outlines), self.micro_batch())?
            }
            false => None,
        };
        Ok(Traced { phases, evaluation })
    }

    /// Runs forward of a phase.
    pub(super) fn run_phase(
        &self,
        built: &Built,
        phase: usize,
        session: &Session,
    ) -> Result<StageForward, TrainError> {
        let (phases, micro_batch) = (built.training.phases(), self.micro_batch());
        let others = micro_batch.ranks;
        let batch_group =
            (others > 1).then(|| Arc::new(OutlineGroup::new(0, others)) as Arc<dyn ProcessGroup>);
        let tape = Tape::recording(Session {
            sample_offset: micro_batch.offset,
            batch_group,
            frozen: phases[phase].constants(&built.networks),
            ..session.clone()
        });
        let step = StepInput::new(&tape, &micro_batch.batch, self.samples.global_weight, 0, session.key);
        let loss = built.training.loss(phase, &step)?.value;
        Ok(StageForward { tape, loss })
    }
}

/// Traces an evaluation of a micro-batch. It may read numbers at its end. `None` if it reads some between passes: the stages that lack
/// them could not go on.
fn traced_evaluation(
    built: &Built,
    session: &Session,
    (trace, outlines): (&ValueTrace, &Outlines),
    micro_batch: &MicroBatch,
) -> Result<Option<TracedPass>, TrainError> {
    let evaluate = || {
        let tape = Tape::forward_only(session.clone());
        let step = StepInput::new(&tape, &micro_batch.batch, 1.0, 0, session.key);
        (built.training.evaluate(&step).map(drop), trace.take())
    };
    let (first, pass) = evaluate();
    match first {
        Ok(()) => return Ok(Some(pass)),
        Err(error) if !reads_outline(&error) => return Err(error),
        Err(_) => {}
    }
    outlines.assume_zeros(true);
    let (second, further) = evaluate();
    outlines.assume_zeros(false);
    let reads_last = second.is_ok() || matches!(&second, Err(error) if reads_outline(error));
    Ok((reads_last && further.values.len() == pass.values.len()).then_some(pass))
}

/// True if a pass without numbers ends where its results are read.
pub(super) fn reads_outline(error: &TrainError) -> bool {
    match error {
        TrainError::Tensor(TensorError::NoNumbers { .. }) => true,
        TrainError::Tensor(TensorError::NotOnHost { backend, .. }) => *backend == Outlines::NAME,
        _ => false,
    }
}
