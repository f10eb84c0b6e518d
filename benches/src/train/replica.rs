//! A model with its parallel strategy.

use std::sync::Arc;

use anyhow::Result;
use phalanx_collectives::CommStats;
use phalanx_sharding::{DataParallel, Observed as _};
use phalanx_tensor::optim::{Optimizer, scale_grads};
use phalanx_tensor::{
    ArithmeticCount, ComputeDevice, Context, Key, ParamStore, Recompute, Session, Tape, TensorGroup, Value,
};

use super::TrainArgs;
use super::precision::Precision;
use super::strategy_ranks::StrategyRanks;

/// The cost of a rank's steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepCost {
    /// The communication up to now.
    pub(super) stats: CommStats,
    /// The floating-point operations of the last step.
    pub(super) operations: u64,
}

/// A rank's training step.
pub(super) type Step = Box<dyn FnMut(&Arc<Context>, u64) -> Result<StepCost>>;

/// A model with the strategy that reduces its gradients.
pub(super) struct Replica {
    pub(super) parallel: Arc<DataParallel>,
    precision: Precision,
    recompute: Recompute,
    device: ComputeDevice,
    arithmetic: ArithmeticCount,
    tensor: Option<TensorGroup>,
}

impl Replica {
    pub(super) fn new(
        args: &TrainArgs,
        ranks: StrategyRanks,
        store: &ParamStore,
        device: &ComputeDevice,
    ) -> Result<Self> {
        let tensor = ranks.tensor().cloned();
        let parallel = ranks.share(store, args)?;
        let recompute = if args.recompute > 0 { Recompute::Every(args.recompute) } else { Recompute::Never };
        Ok(Self {
            parallel,
            precision: args.precision,
            recompute,
            device: device.clone(),
            arithmetic: ArithmeticCount::default(),
            tensor,
        })
    }

    pub(super) fn tape(&self, context: &Arc<Context>, step: u64) -> Tape {
        let world = self.parallel.communicator().world_size();
        Tape::recording(Session {
            listener: (world > 1).then(|| self.parallel.clone() as _),
            precision: self.precision.kept(),
            recompute: self.recompute,
            device: self.device.clone(),
            arithmetic: self.arithmetic.clone(),
            tensor_group: self.tensor.clone(),
            ..Session::training(context.clone(), Key::new(0).step(step))
        })
    }

    /// Returns the communication up to now, and the operations since the last call.
    pub(super) fn cost(&self) -> StepCost {
        StepCost { stats: self.parallel.stats(), operations: self.arithmetic.take() }
    }

    /// Computes gradients, reduces them over the ranks, and updates.
    pub(super) fn step(
        &self,
        (tape, loss): (&Tape, &Value),
        optimizer: &mut impl Optimizer,
        lr: f64,
        context: &Context,
    ) -> Result<()> {
        let step = self.parallel.begin_step()?;
        tape.backward_scaled(loss, self.precision.loss_scale())?;
        Ok(step.finish(|params| {
            if self.precision == Precision::F16 {
                scale_grads(params, 1.0 / self.precision.loss_scale(), context)?;
            }
            optimizer.step(params, lr, context)
        })?)
    }
}
