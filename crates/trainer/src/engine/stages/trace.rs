//! Traces of a training's passes, from the samples of its first step.

use std::sync::Arc;

use phalanx_tensor::backend::Outlines;
use phalanx_tensor::{
    ArrayError, Context, OutlineGroup, Recompute, Session, StageRole, Tape, TensorError, TensorRank,
    TracedPass, ValueTrace, take_peak_recorded_bytes,
};

use crate::engine::TrainError;
use crate::engine::data::MicroBatch;
use crate::engine::first_step::FirstStep;
use crate::engine::training::{Built, StepInput};
use phalanx_config::Config;

/// The passes of a training.
pub(super) struct Traced {
    pub(super) phases: Vec<TracedPass>,
    /// None if there are no evaluations, or if they read numbers between passes.
    pub(super) evaluation: Option<TracedPass>,
}

/// This rank among those that share layers, as which a model is traced: the first one, if ranks do.
pub(super) fn tensor_rank(config: &Config) -> Option<TensorRank> {
    config.tensor_ranks().map(|ranks| TensorRank { rank: 0, ranks })
}

/// Plays the other ranks that share layers, if ranks do.
pub(super) fn other_ranks(config: &Config) -> Option<Arc<OutlineGroup>> {
    tensor_rank(config).map(|TensorRank { rank, ranks }| Arc::new(OutlineGroup::new(rank, ranks)))
}

/// Returns the first micro-batch with samples.
pub(super) fn first_micro_batch<'a>(step: &'a FirstStep<'_>) -> Result<&'a MicroBatch, TrainError> {
    let none = || TrainError::Setup("the first step has no samples to find stages with".to_owned());
    step.micro_batches().next().ok_or_else(none)
}

/// Traces the phases of the first step, and an evaluation of its samples.
pub(super) fn traced(step: &FirstStep<'_>) -> Result<Traced, TrainError> {
    let (outlines, trace, config) = (Outlines::new(), ValueTrace::new(), step.config());
    let (device, micro_batch) = (outlines.device(), first_micro_batch(step)?);
    let built = step.build(&device, tensor_rank(config), None)?;
    let stage = Some(StageRole::Trace(trace.clone()));
    let session = step.session(Arc::new(Context::new(1)), &device, other_ranks(config));
    let session = Session { stage, ..session };
    let pass = |phase| {
        step.forward(&built, phase, (micro_batch, &session))?;
        Ok(trace.take())
    };
    let phases = (0..built.training.phases().len()).map(pass).collect::<Result<_, TrainError>>()?;
    let evaluation = match config.eval.enabled {
        true => {
            let session = Session { training: false, recompute: Recompute::Never, ..session };
            traced_evaluation(&built, &session, (&trace, &outlines), micro_batch)?
        }
        false => None,
    };
    // The run counts what its own passes keep.
    let _ = take_peak_recorded_bytes();
    Ok(Traced { phases, evaluation })
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
        TrainError::Tensor(TensorError::Array(ArrayError::NoNumbers { .. })) => true,
        TrainError::Tensor(TensorError::Array(ArrayError::NotOnHost { backend, .. })) => {
            *backend == Outlines::NAME
        }
        _ => false,
    }
}
