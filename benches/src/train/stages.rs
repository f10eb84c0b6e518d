//! Ranks that compute some layers each, on the texts or images of all of them.

use std::sync::Arc;

use anyhow::{Result, ensure};
use phalanx_collectives::{CommStats, Communicator};
use phalanx_sharding::pipeline::{
    BuiltModel, PipelineSchedule, PipelineSizes, StageCut, StagedModel, StagedSetup,
};
use phalanx_tensor::loss::LossDivisor;
use phalanx_tensor::optim::{Optimizer, scale_grads};
use phalanx_tensor::{ArithmeticCount, ComputeDevice, Context, Key, Recompute, Session, Tape};

use super::TrainArgs;
use super::language;
use super::model::{Model, build};
use super::precision::Precision;
use super::replica::{Step, StepCost};
use super::strategy_ranks::StrategyRanks;

/// The micro-batches of a stage at most.
const MICRO_BATCHES: usize = 4;

/// The chunks of a rank that takes turns.
const CHUNKS: usize = 2;

/// Returns the schedule of a strategy that cuts models by depth.
pub(super) fn schedule_of(strategy: &str) -> Option<&'static str> {
    match strategy {
        "pipeline" => Some("1f1b"),
        "gpipe" => Some("gpipe"),
        "interleaved" => Some("interleaved"),
        "zero-bubble" => Some("zero-bubble"),
        _ => None,
    }
}

/// The number of micro-batches of `samples` samples: as many as trainings choose.
pub(super) fn micro_batches(samples: usize, ranks: usize) -> usize {
    (1..=MICRO_BATCHES * ranks).rev().find(|micros| samples.is_multiple_of(*micros)).unwrap_or(1)
}

/// Makes this rank's stages: those of equal time, of which a run would have other ones each time.
fn staged(args: &TrainArgs, setup: StagedSetup<'_>, micros: usize) -> Result<StagedModel> {
    let samples = args.batch * setup.comm.world_size();
    StagedModel::new(setup, |device, layout| {
        let of_micro = samples / micros;
        let (store, forward) = match args.model().is_language() {
            true => language::build(args, device, of_micro, &|_| layout.clone())?,
            false => build(args, device, of_micro, layout.clone())?,
        };
        let loss = move |tape: &Tape, _: usize| forward(tape, LossDivisor::Count(samples));
        Ok(BuiltModel { store, loss: Box::new(loss) })
    })
}

/// Builds the training step of a model with one loss.
pub(super) fn step(
    args: &TrainArgs,
    kind: &str,
    comm: &Communicator,
    device: &ComputeDevice,
    mut optimizer: impl Optimizer + 'static,
) -> Result<Step> {
    ensure!(!matches!(args.model(), Model::Stackgan1 | Model::Stackgan2), "StackGAN has two losses");
    let ranks = comm.world_size();
    let samples = args.batch * ranks;
    let micros = micro_batches(samples, ranks);
    let chunks = if kind == "interleaved" { CHUNKS } else { 1 };
    let schedule = PipelineSchedule::named(kind, PipelineSizes { ranks, chunks, micros })?;
    let arithmetic = ArithmeticCount::default();
    let session = Session {
        precision: args.precision.kept(),
        recompute: if args.recompute > 0 { Recompute::Every(args.recompute) } else { Recompute::Never },
        device: device.clone(),
        ..Session::training(Arc::new(Context::new(1)), Key::new(0))
    };
    let model = staged(args, StagedSetup { comm, schedule, cut: StageCut::Time, session: &session }, micros)?;
    let alone = StrategyRanks::new(args, "none", comm.clone(), device)?;
    let parallel = alone.share(model.store(), args)?;
    let (precision, scale) = (args.precision, args.precision.loss_scale());
    Ok(Box::new(move |context, number| {
        let session = Session {
            context: context.clone(),
            key: Key::new(0).step(number),
            arithmetic: arithmetic.clone(),
            ..session.clone()
        };
        let step = parallel.begin_step()?;
        let of_micro = |micro: usize| Session { key: session.key.index(micro as u64), ..session.clone() };
        model.gradients(of_micro, scale.into())?;
        step.finish(|params| {
            model.sum_shared_grads(params)?;
            if precision == Precision::F16 {
                scale_grads(params, 1.0 / scale, context)?;
            }
            optimizer.step(params, 1e-4, context)
        })?;
        let traffic = model.pipeline().traffic();
        let waited = traffic.waited.as_secs_f64();
        let stats = CommStats {
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            seconds_exposed: waited,
            seconds_busy: waited,
            ..CommStats::default()
        };
        Ok(StepCost { stats, operations: arithmetic.take() })
    }))
}
