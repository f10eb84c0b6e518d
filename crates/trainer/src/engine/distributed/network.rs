//! One network of a training, and its parallelisation.

use std::sync::Arc;

use phalanx_sharding::{
    CatchUp, DataParallel, LocalModel, Options, Overlap, ParallelStrategy, Partition, ShardRole,
    ShardingError, StateBytes, StepReports, SyncOptions, SyncStats, parallelize,
};
use phalanx_tensor::{Key, Param, ParamBucket, ParamStore, ProcessGroup};

use super::{Distributed, Traffic};
use crate::engine::error::TrainError;
use phalanx_config::{Config, mib};

/// The groups of ranks that have samples of a batch.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct BatchGroups(Option<Arc<dyn ParallelStrategy>>);

impl BatchGroups {
    /// Returns the group of the first `ranks` ranks; none for the only rank. All ranks call this together.
    pub(in crate::engine) fn first(&self, ranks: usize) -> Result<Option<Arc<dyn ProcessGroup>>, TrainError> {
        self.0.as_ref().map(|parallel| Ok(parallel.batch_group(ranks)?)).transpose()
    }
}

/// The parameters and buffers of a network, with the strategy instance that trains them, once it is shared.
#[derive(Debug)]
pub(in crate::engine) struct Network {
    name: String,
    store: ParamStore,
    parallel: Option<Arc<dyn ParallelStrategy>>,
    /// True if there are other ranks.
    is_shared: bool,
    /// True if its gradients are those of virtual ranks.
    is_logical: bool,
}

impl Network {
    /// Creates a network that is not shared.
    pub(in crate::engine) fn new(name: &str, store: ParamStore) -> Self {
        Self { name: name.to_owned(), store, parallel: None, is_shared: false, is_logical: false }
    }

    /// Its name; empty for the only one of a training.
    pub(in crate::engine) fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters and buffers.
    pub(in crate::engine) fn store(&self) -> &ParamStore {
        &self.store
    }

    /// True if a parameter is trained, on this rank or on that of another stage.
    pub(in crate::engine) fn is_learnt(&self) -> bool {
        self.store.model_params().any(Param::trainable)
    }

    /// True if parameters are offloaded to the host and uploaded with the blocks that use them.
    pub(in crate::engine) fn is_offloaded(&self) -> bool {
        self.store.buckets().iter().any(ParamBucket::is_offloaded)
    }

    /// True if all parameters are offloaded on this rank: passes need no communication.
    pub(in crate::engine) fn has_all_on_host(&self) -> bool {
        self.is_offloaded() && !self.gathers()
    }

    /// Shares the network by the configured strategy; `catch_up` is for the survivors of a loss. All ranks then have rank 0's weights.
    pub(in crate::engine) fn share(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        threads: usize,
        catch_up: Option<CatchUp>,
    ) -> Result<(), TrainError> {
        let overlap = config.overlap();
        let ahead = Options {
            prefetch: config.train.prefetch,
            gathered_bytes: mib(config.train.gathered_mib),
            overlap,
            virtual_ranks: config.logical_ranks(),
            ..Options::default()
        };
        self.is_logical = ahead.virtual_ranks.is_some();
        let Some((mesh, strategy)) = distributed.sharing() else {
            let overlap = if self.is_offloaded() { ahead.overlap } else { Overlap::Never };
            self.parallel = Some(DataParallel::alone_with(&self.store, Options { overlap, ..ahead })?);
            return Ok(());
        };
        let options = Options {
            algorithm: config.comm.algorithm,
            codec: config
                .codec
                .settings(config.train.seed, &self.name)
                .codec()
                .map_err(ShardingError::from)?,
            codec_scope: config.codec.scope,
            codec_when: config.codec.when,
            weights: config.codec.weight_rounding(),
            threads,
            ..ahead
        };
        let sync = SyncOptions { catch_up, ..sync_options(config, distributed.data_size(), &self.name) };
        self.parallel = Some(parallelize(&self.store, mesh.clone(), strategy, options, sync)?);
        self.is_shared = true;
        Ok(())
    }

    /// The strategy instance.
    pub(in crate::engine) fn parallel(&self) -> Result<&Arc<dyn ParallelStrategy>, TrainError> {
        let unshared =
            || TrainError::Setup(format!("network `{}` is trained that was not shared", self.name));
        self.parallel.as_ref().ok_or_else(unshared)
    }

    /// The strategy instance, if there are other ranks.
    pub(super) fn shared(&self) -> Option<Arc<dyn ParallelStrategy>> {
        self.parallel.clone().filter(|_| self.is_shared)
    }

    /// The listener of its blocks and gradients, if one is needed.
    pub(super) fn listener(&self) -> Option<Arc<dyn ParallelStrategy>> {
        self.parallel.clone().filter(|_| self.is_shared || self.is_offloaded() || self.is_logical)
    }

    /// True if ranks have different whole parameters between steps, under asynchronous strategies.
    pub(in crate::engine) fn is_apart(&self) -> bool {
        self.shared().is_some_and(|parallel| parallel.local_model() != LocalModel::Current)
    }

    /// True if its gradients are those of virtual ranks, summed along a tree.
    pub(in crate::engine) fn is_logical(&self) -> bool {
        self.is_logical
    }

    /// True if ranks run every step together.
    pub(in crate::engine) fn is_lockstep(&self) -> bool {
        self.shared().is_none_or(|parallel| parallel.step_reports() == StepReports::AtOnce)
    }

    /// The staleness of updates and the waiting of this rank, under asynchronous strategies.
    pub(in crate::engine) fn sync_stats(&self) -> Option<SyncStats> {
        self.shared().filter(|_| self.is_learnt() && self.is_apart()).map(|parallel| parallel.sync_stats())
    }

    /// True if parameters are sharded and gathered for each use.
    pub(in crate::engine) fn gathers(&self) -> bool {
        self.parallel.as_ref().is_some_and(|parallel| parallel.role().parameters == Partition::Sharded)
    }

    /// The peak bytes of gathered parameters.
    pub(in crate::engine) fn peak_gathered_bytes(&self) -> u64 {
        self.parallel.as_ref().map_or(0, |parallel| parallel.peak_gathered_bytes())
    }

    /// The groups of ranks with samples of a batch, for operations over the whole batch.
    pub(in crate::engine) fn batch_groups(&self) -> BatchGroups {
        BatchGroups(self.shared())
    }

    /// Applies `change` to the parameters that this rank owns, then synchronises them.
    pub(in crate::engine) fn update(
        &self,
        mut change: impl FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<(), TrainError> {
        Ok(self.parallel()?.update(&mut change)?)
    }

    /// Gathers all parameters, until [`Network::reshard`] or an update.
    pub(in crate::engine) fn unshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.unshard()?))
    }

    /// Frees the parts of other ranks.
    pub(in crate::engine) fn reshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.reshard()?))
    }

    /// The part of the state that this rank holds.
    pub(in crate::engine) fn role(&self) -> Result<ShardRole, TrainError> {
        Ok(self.parallel()?.role())
    }

    /// The bytes of state that this rank holds.
    pub(in crate::engine) fn bytes(&self) -> StateBytes {
        self.parallel.as_ref().map_or_else(StateBytes::default, |parallel| parallel.bytes())
    }

    /// Broadcasts the parameters and buffers of rank 0.
    pub(in crate::engine) fn broadcast_state(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_state(&self.store)?))
    }

    /// Broadcasts the buffers of rank 0.
    pub(in crate::engine) fn broadcast_buffers(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_buffers(&self.store)?))
    }

    /// The communication so far, that of other networks on the same mesh included.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        self.shared().map(|parallel| parallel.stats().into())
    }
}

/// Returns the options of `[sync]` for a network that `ranks` ranks share.
pub(in crate::engine) fn sync_options(config: &Config, ranks: usize, network: &str) -> SyncOptions {
    let (sync, train) = (&config.sync, &config.train);
    SyncOptions {
        staleness: sync.staleness,
        every: sync.every,
        start: sync.start,
        outer_lr: sync.outer_lr,
        outer_momentum: sync.outer_momentum,
        fragments: sync.fragments,
        overlap: sync.overlap,
        mixing: sync.mixing,
        outer_bf16: sync.outer_bf16,
        damp: sync.damp,
        compensation: sync.compensation,
        servers: sync.servers,
        // Gradients are clipped before they are pushed.
        push_late: train.clip_norm > 0.0,
        pull_ahead: true,
        topology: sync.topology,
        // Losses are divided by the batch of all ranks; a rank that trains alone has only its part.
        gradient_scale: ranks as f64,
        key: Key::new(train.seed).stream("neighbours").stream(network),
        catch_up: None,
    }
}
