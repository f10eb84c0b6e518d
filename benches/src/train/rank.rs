//! A rank that takes training steps on request, and the threads of all ranks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use anyhow::{Context as _, Result, anyhow};
use phalanx_collectives::{CommStats, Communicator, threads};
use phalanx_tensor::loss::LossDivisor;
use phalanx_tensor::optim::{Optimizer, Sgd};
use phalanx_tensor::{ComputeDevice, Context};

use super::model::{Model, build};
use super::replica::{Replica, Step, StepCost};
use super::strategy_ranks::StrategyRanks;
use super::{Row, TrainArgs, language, stackgan, stages};

/// Builds the training step of a model with one loss.
fn single_loss_step(
    args: &TrainArgs,
    strategy: &str,
    comm: Communicator,
    device: &ComputeDevice,
    mut optimizer: impl Optimizer + 'static,
) -> Result<Step> {
    if let Some(kind) = stages::schedule_of(strategy) {
        return stages::step(args, kind, &comm, device, optimizer);
    }
    let global = args.batch * comm.world_size();
    let ranks = StrategyRanks::new(args, strategy, comm, device)?;
    let (store, forward) = match args.model().is_language() {
        true => language::build(args, device, ranks.samples(), &|plan| ranks.layout(plan))?,
        false => build(args, device, ranks.samples(), None)?,
    };
    let replica = Replica::new(args, ranks, &store, device)?;
    Ok(Box::new(move |context, step| {
        let tape = replica.tape(context, step);
        let loss = forward(&tape, LossDivisor::Count(global))?;
        replica.step((&tape, &loss), &mut optimizer, 1e-4, context)?;
        Ok(replica.cost())
    }))
}

/// The report of a rank after some steps.
struct RankReport {
    cost: StepCost,
    /// The peak memory of its GPU, in bytes.
    gpu_memory: Option<u64>,
}

/// Runs one rank. For each request it takes that number of steps and waits for its device.
fn rank(
    args: &TrainArgs,
    strategy: &str,
    world: &Communicator,
    go: &Receiver<u64>,
    done: &Sender<Result<RankReport>>,
) -> Result<()> {
    let context = Arc::new(Context::new(args.common.threads()).with_products(args.precision.products()));
    let device = args.device.open(world.rank())?;
    let (compute, comm) = (device.compute(), device.connected(world.clone())?);
    let mut step = match args.model() {
        Model::Stackgan1 | Model::Stackgan2 => stackgan::step(args, strategy, comm, &compute)?,
        model if model.is_language() => {
            single_loss_step(args, strategy, comm, &compute, language::optimizer())?
        }
        _ => single_loss_step(args, strategy, comm, &compute, Sgd::new(0.9, false, 5e-4))?,
    };
    let mut replay = args.graphs.then(|| device.replay()).transpose()?;
    let mut number = 0;
    while let Ok(count) = go.recv() {
        let mut outcome = Ok(StepCost::default());
        for _ in 0..count {
            outcome = match &mut replay {
                Some(replay) => replay.run(|| step(&context, number)),
                None => step(&context, number),
            };
            number += 1;
            if outcome.is_err() {
                break;
            }
        }
        let told = outcome.and_then(|cost| {
            device.finish()?;
            Ok(RankReport { cost, gpu_memory: device.peak_memory() })
        });
        if done.send(told).is_err() {
            break;
        }
    }
    Ok(())
}

/// The ranks of one strategy, as threads that wait for requests.
pub(super) struct RankThreads<'a> {
    strategy: &'a str,
    ranks: Vec<(Sender<u64>, Receiver<Result<RankReport>>)>,
    /// The number of steps.
    taken: u64,
    /// The statistics of rank 0 after the first request and after the last, each with the number of steps.
    stats: Option<[(u64, CommStats); 2]>,
    gpu_memory: Option<u64>,
    /// The floating-point operations of a step of rank 0.
    operations: u64,
}

impl<'a> RankThreads<'a> {
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        args: &'scope TrainArgs,
        strategy: &'a str,
        world: usize,
    ) -> Result<Self>
    where
        'a: 'scope,
    {
        let mut ranks = Vec::new();
        for comm in threads(world)? {
            let (go, told) = channel();
            let (tell, done) = channel();
            scope.spawn(move || {
                if let Err(error) = rank(args, strategy, &comm, &told, &tell) {
                    // The receiver is dropped if another rank failed.
                    let _ = tell.send(Err(error));
                }
            });
            ranks.push((go, done));
        }
        Ok(Self { strategy, ranks, taken: 0, stats: None, gpu_memory: None, operations: 0 })
    }

    /// Takes `count` steps on all ranks.
    pub(super) fn steps(&mut self, count: u64) -> Result<()> {
        for (go, _) in &self.ranks {
            go.send(count).map_err(|_| anyhow!("a rank has ended"))?;
        }
        self.taken += count;
        let told = self.ranks.iter().map(|(_, done)| done.recv().context("a rank has ended")?);
        let told = told.collect::<Result<Vec<_>>>()?;
        if let Some(first) = told.first() {
            let now = (self.taken, first.cost.stats);
            self.operations = first.cost.operations;
            self.stats = Some(self.stats.map_or([now; 2], |[begin, _]| [begin, now]));
        }
        self.gpu_memory = told.iter().filter_map(|told| told.gpu_memory).max();
        Ok(())
    }

    /// Returns the peak memory of the largest GPU, in bytes, if ranks have GPUs.
    pub(super) fn gpu_memory(&self) -> Option<u64> {
        self.gpu_memory
    }

    /// Returns the median of the seconds of a step, and the mean of its communication without the first step.
    pub(super) fn row(&self, seconds: f64) -> Row<'a> {
        let [(before, first), (after, last)] = self.stats.unwrap_or_default();
        let steps = (after - before).max(1) as f64;
        let exposed = (last.seconds_exposed - first.seconds_exposed) / steps;
        let busy = (last.seconds_busy - first.seconds_busy) / steps;
        Row {
            strategy: self.strategy,
            seconds,
            exposed,
            hidden: (busy - exposed).max(0.0),
            bytes_sent: (last.bytes_sent - first.bytes_sent) as f64 / steps,
            operations: self.operations,
            peer: None,
        }
    }
}
