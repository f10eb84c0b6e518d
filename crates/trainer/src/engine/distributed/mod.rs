//! The other ranks, as the training loop sees them.

mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_collectives::{Communicator, ReduceOp, WorldConfig, connect_unless};
use phalanx_sharding::{DataParallel, Options, Overlap, Ranks, Share, Strategy, hook_named};
use phalanx_tensor::{Listener, ParamStore, ProcessGroup, Unit};

use world::Link;
pub use world::{World, in_one_process, launcher_world};

use super::error::TrainError;
use crate::config::{Config, OverlapKind, mib};
use crate::launch::StopFlag;

/// What communication has cost a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Traffic {
    pub(in crate::engine) bytes_sent: u64,
    pub(in crate::engine) bytes_received: u64,
    /// Time in which the loop waited.
    pub(in crate::engine) exposed: Duration,
    /// Time in which the communication thread was at work.
    pub(in crate::engine) busy: Duration,
}

/// The other ranks; none, for the only rank.
pub(in crate::engine) struct Distributed {
    rank: usize,
    size: usize,
    communicator: Option<Communicator>,
    strategy: Option<Strategy>,
    parallel: Option<Arc<DataParallel>>,
}

impl Distributed {
    /// Meets the other ranks, unless `stop` is raised before. If an operation with them fails, the last ones are written to the
    /// folder of logs.
    pub(in crate::engine) fn connect(
        world: &World,
        config: &Config,
        logs: &Path,
        stop: &StopFlag,
    ) -> Result<Self, TrainError> {
        let communicator = match &world.link {
            Link::Process(config) if config.world_size > 1 => {
                let flight_recorder = config.flight_recorder.clone().or_else(|| Some(logs.to_owned()));
                let config = WorldConfig { flight_recorder, ..WorldConfig::clone(config) };
                Some(connect_unless(&config, || stop.is_raised())?)
            }
            Link::Thread(communicator) if communicator.world_size() > 1 => Some(communicator.clone()),
            _ => None,
        };
        let strategy = Strategy::named(config.train.strategy.as_str())?;
        Ok(Self {
            rank: world.rank(),
            size: world.size(),
            communicator,
            strategy: Some(strategy),
            parallel: None,
        })
    }

    /// Nobody.
    pub(in crate::engine) fn none() -> Self {
        Self { rank: 0, size: 1, communicator: None, strategy: None, parallel: None }
    }

    /// Ranks that are threads of a test.
    #[cfg(test)]
    pub(in crate::engine) fn among(communicator: Communicator) -> Self {
        let (rank, size) = (communicator.rank(), communicator.world_size());
        Self { rank, size, communicator: Some(communicator), strategy: None, parallel: None }
    }

    pub(in crate::engine) fn rank(&self) -> usize {
        self.rank
    }

    pub(in crate::engine) fn size(&self) -> usize {
        self.size
    }

    /// Whether there are others, with whom a model will be shared.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.communicator.is_some()
    }

    /// The ranks among which the first reads the data for all and scatters it, if the strategy says so.
    pub(in crate::engine) fn fed(&self) -> Option<&Communicator> {
        let threads = self.strategy.is_some_and(|strategy| strategy.ranks == Ranks::Threads);
        self.communicator.as_ref().filter(|_| threads)
    }

    /// Shares the work on a model by the configured strategy. All ranks then have rank 0's weights.
    pub(in crate::engine) fn share(
        &mut self,
        config: &Config,
        store: &ParamStore,
        threads: usize,
    ) -> Result<(), TrainError> {
        if let (Some(communicator), Some(strategy)) = (&self.communicator, self.strategy) {
            let options = Options {
                bucket_bytes: config.train.bucket_kib.saturating_mul(1 << 10),
                prefetch: config.train.prefetch,
                gathered_bytes: mib(config.train.gathered_mib),
                hook: hook_named(config.train.compress.as_str())?,
                overlap: match config.train.overlap {
                    OverlapKind::Auto => Overlap::Auto,
                    OverlapKind::Always => Overlap::Always,
                    OverlapKind::Never => Overlap::Never,
                },
                threads,
                ..Options::default()
            };
            let communicator = communicator.clone();
            self.parallel = Some(DataParallel::with_options(store, communicator, strategy, options)?);
        }
        Ok(())
    }

    /// The most bytes of whole parameters that were gathered at once.
    pub(in crate::engine) fn peak_gathered_bytes(&self) -> u64 {
        self.parallel.as_ref().map_or(0, |parallel| parallel.peak_gathered_bytes())
    }

    /// Who is told about blocks and gradients.
    pub(in crate::engine) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.parallel.clone().map(|parallel| parallel as Arc<dyn Listener>)
    }

    /// The first `ranks` ranks, which have samples of a batch, for what depends on all of it. Every rank calls this at the same
    /// place.
    pub(in crate::engine) fn batch_group(
        &self,
        ranks: usize,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, TrainError> {
        self.parallel.as_ref().map(|parallel| Ok(parallel.batch_group_among(ranks)?)).transpose()
    }

    /// What the optimizer, clipping and averages act on: the store's units, or this rank's parts of them.
    pub(in crate::engine) fn units(&self, store: &ParamStore) -> Vec<Unit> {
        self.parallel.as_ref().map_or_else(|| store.units().to_vec(), |parallel| parallel.units())
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

    /// Brings what other ranks have updated to this one.
    pub(in crate::engine) fn finish_update(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.finish_update()?))
    }

    /// Runs `work` with all parameters in this rank's memory. Every rank calls this at the same place.
    pub(in crate::engine) fn with_all<R>(
        &self,
        work: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let Some(parallel) = &self.parallel else { return work() };
        parallel.summon()?;
        let result = work();
        parallel.dismiss()?;
        result
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
    pub(in crate::engine) fn resident_units(&self, store: &ParamStore) -> Vec<Unit> {
        self.parallel.as_ref().map_or_else(|| store.units().to_vec(), |parallel| parallel.resident_units())
    }

    /// What every rank has to say, known to all, by rank.
    pub(in crate::engine) fn gather_text(&self, text: &str) -> Result<Vec<String>, TrainError> {
        let Some(communicator) = &self.communicator else { return Ok(vec![text.to_owned()]) };
        let all = communicator.all_gatherv(text.as_bytes())?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Bytes of parameters and of gradients that this rank holds.
    pub(in crate::engine) fn bytes(&self, store: &ParamStore) -> [u64; 2] {
        if let Some(parallel) = &self.parallel {
            return parallel.bytes();
        }
        let sum = |held: fn(&Unit) -> bool| {
            store.units().iter().filter(|unit| held(unit)).map(|unit| unit.bytes() as u64).sum()
        };
        [sum(|unit| unit.values().is_some()), sum(Unit::has_grads)]
    }

    /// Waits until the gradients of all ranks are summed.
    pub(in crate::engine) fn finish_gradients(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.finish_gradients()?))
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_state(&self, store: &ParamStore) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_state(store)?))
    }

    /// Makes all ranks' buffers equal to rank 0's.
    pub(in crate::engine) fn broadcast_buffers(&self, store: &ParamStore) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_buffers(store)?))
    }

    /// Replaces each number by its sum over the ranks.
    pub(in crate::engine) fn sum(&self, values: &mut [f64]) -> Result<(), TrainError> {
        self.communicator.as_ref().map_or(Ok(()), |world| Ok(world.all_reduce(values, ReduceOp::Sum)?))
    }

    /// The sum of one number over the ranks.
    pub(in crate::engine) fn sum_of(&self, value: f64) -> Result<f64, TrainError> {
        let mut values = [value];
        self.sum(&mut values)?;
        Ok(values[0])
    }

    /// What communication has cost so far.
    pub(in crate::engine) fn traffic(&self) -> Traffic {
        let Some(communicator) = &self.communicator else { return Traffic::default() };
        let stats = self.parallel.as_ref().map_or_else(|| communicator.stats(), |parallel| parallel.stats());
        Traffic {
            bytes_sent: stats.bytes_sent,
            bytes_received: stats.bytes_received,
            exposed: Duration::from_secs_f64(stats.seconds_exposed),
            busy: Duration::from_secs_f64(stats.seconds_busy),
        }
    }

    /// Tells the other ranks that this one fails, so that they do not wait for it.
    pub(in crate::engine) fn abort(&self, reason: &str) {
        if let Some(communicator) = &self.communicator {
            communicator.abort(reason);
        }
    }

    /// Leaves the world in good order: nobody goes before all have come this far.
    pub(in crate::engine) fn finish(&self) -> Result<(), TrainError> {
        if let Some(communicator) = &self.communicator {
            communicator.barrier("end of training")?;
            communicator.shutdown();
        }
        Ok(())
    }
}
