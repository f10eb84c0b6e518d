//! One network of a training, and how this rank shares it with the others.

use std::sync::Arc;

use phalanx_sharding::{DataParallel, Options, Share, hook_named};
use phalanx_tensor::{ParamStore, ProcessGroup, Unit};

use super::{Distributed, Traffic};
use crate::config::{Config, mib};
use crate::engine::error::TrainError;

/// Groups of the ranks that have samples of a batch.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct BatchGroups(Option<Arc<DataParallel>>);

impl BatchGroups {
    /// The first `ranks` ranks; none where this is the only rank. Every rank calls this at the same place.
    pub(in crate::engine) fn first(&self, ranks: usize) -> Result<Option<Arc<dyn ProcessGroup>>, TrainError> {
        self.0.as_ref().map(|parallel| Ok(parallel.batch_group_among(ranks)?)).transpose()
    }
}

/// A network's parameters and buffers, with the strategy instance that shares them over the world, if there are other ranks.
#[derive(Debug)]
pub(in crate::engine) struct Network {
    name: String,
    store: ParamStore,
    parallel: Option<Arc<DataParallel>>,
}

impl Network {
    /// A network that this rank has for itself.
    pub(in crate::engine) fn new(name: &str, store: ParamStore) -> Self {
        Self { name: name.to_owned(), store, parallel: None }
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
        self.store.units().iter().any(Unit::trainable)
    }

    /// Shares the work on it by the configured strategy. All ranks then have rank 0's weights.
    pub(in crate::engine) fn share(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        threads: usize,
    ) -> Result<(), TrainError> {
        if let Some((communicator, strategy)) = distributed.sharing() {
            let options = Options {
                bucket_bytes: config.train.bucket_kib.saturating_mul(1 << 10),
                prefetch: config.train.prefetch,
                gathered_bytes: mib(config.train.gathered_mib),
                hook: hook_named(config.train.compress.as_str())?,
                overlap: config.train.overlap,
                threads,
                ..Options::default()
            };
            let communicator = communicator.clone();
            self.parallel = Some(DataParallel::with_options(&self.store, communicator, strategy, options)?);
        }
        Ok(())
    }

    /// Who shares it with the other ranks.
    pub(super) fn parallel(&self) -> Option<&Arc<DataParallel>> {
        self.parallel.as_ref()
    }

    /// The most bytes of whole parameters that were gathered at once.
    pub(in crate::engine) fn peak_gathered_bytes(&self) -> u64 {
        self.parallel.as_ref().map_or(0, |parallel| parallel.peak_gathered_bytes())
    }

    /// The ranks that have samples of a batch, for what depends on all of it.
    pub(in crate::engine) fn batch_groups(&self) -> BatchGroups {
        BatchGroups(self.parallel.clone())
    }

    /// What the optimizer, clipping and averages act on: the store's units, or this rank's parts of them.
    pub(in crate::engine) fn units(&self) -> Vec<Unit> {
        self.parallel.as_ref().map_or_else(|| self.store.units().to_vec(), |parallel| parallel.units())
    }

    /// Replaces sums over the elements of those by sums over all elements.
    pub(in crate::engine) fn sum_parts(&self, values: &mut [f64]) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.sum_shards(values)?))
    }

    /// Says whether more micro-batches of the step follow, before whose last nothing is reduced.
    pub(in crate::engine) fn accumulate(&self, more: bool) {
        if let Some(parallel) = &self.parallel {
            parallel.accumulate(more);
        }
    }

    /// Waits until the gradients of all ranks are summed.
    pub(in crate::engine) fn finish_gradients(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.finish_gradients()?))
    }

    /// Brings what other ranks have updated to this one.
    pub(in crate::engine) fn finish_update(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.finish_update()?))
    }

    /// Brings all parameters into this rank's memory, where they stay until the update.
    pub(in crate::engine) fn summon(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.summon()?))
    }

    /// Lets them leave again.
    pub(in crate::engine) fn dismiss(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.dismiss()?))
    }

    /// What of the state this rank holds, and which other ranks hold the rest or the same.
    pub(in crate::engine) fn part(&self) -> Share {
        self.parallel.as_ref().map_or(Share::ALONE, |parallel| parallel.share())
    }

    /// The units whose values this rank keeps between steps.
    pub(in crate::engine) fn resident_units(&self) -> Vec<Unit> {
        self.parallel
            .as_ref()
            .map_or_else(|| self.store.units().to_vec(), |parallel| parallel.resident_units())
    }

    /// Bytes of parameters and of gradients that this rank holds.
    pub(in crate::engine) fn bytes(&self) -> [u64; 2] {
        if let Some(parallel) = &self.parallel {
            return parallel.bytes();
        }
        let sum = |held: fn(&Unit) -> bool| {
            self.store.units().iter().filter(|unit| held(unit)).map(|unit| unit.bytes() as u64).sum()
        };
        [sum(|unit| unit.values().is_some()), sum(Unit::has_grads)]
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_state(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_state(&self.store)?))
    }

    /// Makes all ranks' buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_buffers(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_buffers(&self.store)?))
    }

    /// What communication has cost so far, that of other networks over the same communicator included.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        self.parallel.as_ref().map(|parallel| parallel.stats().into())
    }
}
