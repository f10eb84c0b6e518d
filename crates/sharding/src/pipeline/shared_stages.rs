//! Parameters that several stages hold, such as a table that is the head, too.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_tensor::{ParamBucket, ProcessGroup, TensorError};

use super::stage_params::StageParams;
use crate::Result;
use crate::mesh::process_group::RankGroup;

/// Ranks along a pipeline that hold the same parameters.
#[derive(Debug)]
struct SharedStage {
    ranks: Arc<[usize]>,
    group: Arc<dyn ProcessGroup>,
}

/// The ranks that hold parameters together with this one.
#[derive(Debug)]
pub struct SharedStages(Vec<SharedStage>);

impl SharedStages {
    /// Connects the ranks along a pipeline, those of `comm`, that hold the same parameters. All ranks call this together.
    ///
    /// # Errors
    /// The error of the world.
    pub fn connect(comm: &Communicator, params: &StageParams) -> Result<Self> {
        let mut shared = Vec::new();
        for ranks in params.shared() {
            let is_here = ranks.contains(&comm.rank());
            let group = comm.split(is_here.then_some(0), 0)?.map(|part| RankGroup::of(&part));
            shared.extend(group.map(|group| SharedStage { ranks, group }));
        }
        Ok(Self(shared))
    }

    /// Adds up the gradients of parameters that several stages hold, after backward and before they are used. All ranks call this
    /// together, with the memory of all their parameters.
    ///
    /// # Errors
    /// Errors of the transport.
    pub fn sum_grads<'a>(
        &self,
        params: impl IntoIterator<Item = &'a ParamBucket>,
    ) -> phalanx_tensor::Result<()> {
        for bucket in params.into_iter().filter(|bucket| !bucket.stages().is_empty()) {
            let Some(grads) = bucket.owned_grads()? else { continue };
            let shared = self.0.iter().find(|shared| *shared.ranks == *bucket.stages());
            let shared = shared.ok_or_else(|| {
                let stages = bucket.stages();
                TensorError::Backward(format!(
                    "ranks {stages:?} of the pipeline hold a parameter and are not connected"
                ))
            })?;
            let failed = |source| TensorError::Hook { op: "sum over stages", source };
            shared.group.all_reduce(grads.array()).map_err(failed)?;
        }
        Ok(())
    }
}
