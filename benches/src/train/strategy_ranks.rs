//! The ranks of a strategy: those with texts or images of their own, or those that share layers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use phalanx_collectives::{Communicator, threads};
use phalanx_sharding::{DataParallel, Options, ProcessMesh, Strategy};
use phalanx_tensor::{ComputeDevice, ParamLayout, ParamStore, TensorGroup, TensorPlan, TensorRank};

use super::TrainArgs;

/// True if a strategy cuts layers over ranks.
pub(super) fn cuts_layers(strategy: &str) -> bool {
    matches!(strategy, "tensor" | "sequence")
}

/// The ranks of a strategy.
pub(super) struct StrategyRanks {
    mesh: ProcessMesh,
    row: Strategy,
    tensor: Option<TensorGroup>,
    /// Texts or images of each rank.
    samples: usize,
}

impl StrategyRanks {
    /// All ranks together have `--batch` samples for each, also if they share layers.
    pub(super) fn new(
        args: &TrainArgs,
        strategy: &str,
        world: Communicator,
        device: &ComputeDevice,
    ) -> Result<Self> {
        if cuts_layers(strategy) {
            ensure!(args.model().is_language(), "--strategy {strategy} is of language models");
            let ranks = world.world_size();
            let mesh = ProcessMesh::new(world, &[("replicate", 1), ("tensor", ranks)])?;
            let overlap = args.overlap.overlap();
            let overlaps = overlap.decide(mesh.axis("tensor")?, device.is_host(), args.common.threads())?;
            let splits_sequences = strategy == "sequence";
            let tensor = Some(TensorGroup { ranks: mesh.group("tensor")?, splits_sequences, overlaps });
            return Ok(Self { mesh, row: Strategy::named("ddp")?, tensor, samples: args.batch * ranks });
        }
        // Without communication each rank is a separate world.
        let (world, name) = match strategy {
            "none" => (threads(1)?.remove(0), "ddp"),
            name => (world, name),
        };
        let row = Strategy::named(name)?;
        let mesh = ProcessMesh::suiting(world, &row, 0)?;
        Ok(Self { mesh, row, tensor: None, samples: args.batch })
    }

    /// Texts or images of each rank.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// The portions of parameters that this rank holds, if ranks share layers.
    pub(super) fn layout(&self, plan: &TensorPlan) -> Option<Arc<dyn ParamLayout>> {
        let group = &self.tensor.as_ref()?.ranks;
        Some(plan.layout(TensorRank { rank: group.rank(), ranks: group.size() }))
    }

    /// The ranks that share layers, if ranks do.
    pub(super) fn tensor(&self) -> Option<&TensorGroup> {
        self.tensor.as_ref()
    }

    /// Makes the strategy of a model.
    pub(super) fn share(self, store: &ParamStore, args: &TrainArgs) -> Result<Arc<DataParallel>> {
        let (overlap, threads) = (args.overlap.overlap(), args.common.threads());
        let options = Options { overlap, threads, ..Options::default() };
        Ok(DataParallel::with_options(store, self.mesh, self.row, options)?)
    }
}
