//! One network of a training, and how this rank shares it with the others.

use std::sync::Arc;

use phalanx_sharding::{
    CatchUp, DataParallel, LocalModel, Options, Overlap, ParallelStrategy, Partition, ShardRole,
    ShardingError, StateBytes, StepReports, SyncOptions, SyncStats, parallelize,
};
use phalanx_tensor::{Key, ParamBucket, ParamStore, ProcessGroup};

use super::{Distributed, Traffic};
use crate::config::{Config, mib};
use crate::engine::error::TrainError;

/// Groups of the ranks that have samples of a batch.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct BatchGroups(Option<Arc<dyn ParallelStrategy>>);

impl BatchGroups {
    /// The first `ranks` ranks; none where this is the only rank. Every rank calls this at the same place.
    pub(in crate::engine) fn first(&self, ranks: usize) -> Result<Option<Arc<dyn ProcessGroup>>, TrainError> {
        self.0.as_ref().map(|parallel| Ok(parallel.batch_group(ranks)?)).transpose()
    }
}

/// A network's parameters and buffers, with the strategy instance that trains them over the world, once it is shared.
#[derive(Debug)]
pub(in crate::engine) struct Network {
    name: String,
    store: ParamStore,
    parallel: Option<Arc<dyn ParallelStrategy>>,
    /// Whether there are other ranks.
    is_shared: bool,
    /// Whether its gradients are those of logical ranks.
    is_logical: bool,
}

impl Network {
    /// A network that this rank has for itself.
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

    /// Whether anything of it is learnt.
    pub(in crate::engine) fn is_learnt(&self) -> bool {
        self.store.buckets().iter().any(ParamBucket::trainable)
    }

    /// Whether parameters of it are kept on the host, and come to a GPU with the blocks that use them.
    pub(in crate::engine) fn is_offloaded(&self) -> bool {
        self.store.buckets().iter().any(ParamBucket::is_offloaded)
    }

    /// Whether this rank has all of its parameters, for itself and on the host: a pass brings what it needs and asks nobody.
    pub(in crate::engine) fn has_all_on_host(&self) -> bool {
        self.is_offloaded() && !self.gathers()
    }

    /// Shares the work on it by the configured strategy, where those who go on without others may have to catch up. All ranks
    /// then have rank 0's weights.
    pub(in crate::engine) fn share(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        threads: usize,
        catch_up: Option<CatchUp>,
    ) -> Result<(), TrainError> {
        // Bytes on a simulated link are no work of the processor, which could not go on beside computing.
        let overlap = match config.train.overlap {
            Overlap::Auto if !config.comm.link.is_empty() => Overlap::Always,
            overlap => overlap,
        };
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

    /// How it is trained, alone or with the other ranks.
    pub(in crate::engine) fn parallel(&self) -> Result<&Arc<dyn ParallelStrategy>, TrainError> {
        let unshared =
            || TrainError::Setup(format!("network `{}` is trained that was not shared", self.name));
        self.parallel.as_ref().ok_or_else(unshared)
    }

    /// Who shares it with the other ranks, if there are any.
    pub(super) fn shared(&self) -> Option<Arc<dyn ParallelStrategy>> {
        self.parallel.clone().filter(|_| self.is_shared)
    }

    /// Who hears of its blocks and gradients, if anybody has to.
    pub(super) fn listener(&self) -> Option<Arc<dyn ParallelStrategy>> {
        self.parallel.clone().filter(|_| self.is_shared || self.is_offloaded() || self.is_logical)
    }

    /// Whether the model is not what this rank has of it between steps, although this rank has all of it: ranks train apart.
    pub(in crate::engine) fn is_apart(&self) -> bool {
        self.shared().is_some_and(|parallel| parallel.local_model() != LocalModel::Current)
    }

    /// Whether its gradients are those of logical ranks, summed along the tree over these.
    pub(in crate::engine) fn is_logical(&self) -> bool {
        self.is_logical
    }

    /// Whether ranks take every step together.
    pub(in crate::engine) fn is_lockstep(&self) -> bool {
        self.shared().is_none_or(|parallel| parallel.step_reports() == StepReports::AtOnce)
    }

    /// How stale changes were, and how long this rank has waited, if ranks do not take every step together.
    pub(in crate::engine) fn sync_stats(&self) -> Option<SyncStats> {
        self.shared().filter(|_| self.is_learnt() && self.is_apart()).map(|parallel| parallel.sync_stats())
    }

    /// Whether parameters leave memory between uses.
    pub(in crate::engine) fn gathers(&self) -> bool {
        self.parallel.as_ref().is_some_and(|parallel| parallel.role().parameters == Partition::Sharded)
    }

    /// The most bytes of whole parameters that were gathered at once.
    pub(in crate::engine) fn peak_gathered_bytes(&self) -> u64 {
        self.parallel.as_ref().map_or(0, |parallel| parallel.peak_gathered_bytes())
    }

    /// The ranks that have samples of a batch, for what depends on all of it.
    pub(in crate::engine) fn batch_groups(&self) -> BatchGroups {
        BatchGroups(self.shared())
    }

    /// Has `change` change the parameters that this rank owns, and brings what others have changed to this one.
    pub(in crate::engine) fn update(
        &self,
        mut change: impl FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<(), TrainError> {
        Ok(self.parallel()?.update(&mut change)?)
    }

    /// Brings all parameters into this rank's memory, where they stay until [`Network::reshard`] or an update.
    pub(in crate::engine) fn unshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.unshard()?))
    }

    /// Lets them leave again.
    pub(in crate::engine) fn reshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.reshard()?))
    }

    /// What of the state this rank holds, and which other ranks hold the rest or the same.
    pub(in crate::engine) fn role(&self) -> Result<ShardRole, TrainError> {
        Ok(self.parallel()?.role())
    }

    /// Bytes of state that this rank holds.
    pub(in crate::engine) fn bytes(&self) -> StateBytes {
        self.parallel.as_ref().map_or_else(StateBytes::default, |parallel| parallel.bytes())
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_state(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_state(&self.store)?))
    }

    /// Makes all ranks' buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_buffers(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_buffers(&self.store)?))
    }

    /// What communication has cost so far, that of other networks over the same mesh included.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        self.shared().map(|parallel| parallel.stats().into())
    }
}

/// What `[sync]` says for a network that `ranks` ranks share.
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
        // Losses are divided by the batch of all ranks; each rank that trains by itself has its part of it.
        gradient_scale: ranks as f64,
        key: Key::new(train.seed).stream("neighbours").stream(network),
        catch_up: None,
    }
}
