//! The other ranks, as the training loop sees them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_collectives::{Communicator, ReduceOp, WorldConfig, connect};
use phalanx_sharding::{
    DataParallel, Options, Overlap, ParallelStrategy, Ranks, ShardRole, StateBytes, Step, Strategy,
    codec_named,
};
use phalanx_tensor::{FlatParam, Listener, ParamStore, StatsSync};

use super::tasks::mib;
use super::world::Link;
use super::{TrainError, World};
use crate::config::{Config, OverlapKind};

/// What communication has cost a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// Time in which the loop waited.
    pub(super) exposed: Duration,
    /// Time in which the communication thread was at work.
    pub(super) busy: Duration,
}

/// The other ranks; none, for the only rank.
pub(super) struct Peers {
    rank: usize,
    size: usize,
    communicator: Option<Communicator>,
    strategy: Option<Strategy>,
    /// How a model is trained together, once there is one.
    parallel: Option<Arc<dyn ParallelStrategy>>,
}

impl Peers {
    /// Meets the other ranks. If an operation with them fails, the last ones are written to the folder of logs.
    pub(super) fn connect(world: &World, config: &Config, logs: &Path) -> Result<Self, TrainError> {
        let communicator = match &world.link {
            Link::Process(config) if config.world_size > 1 => {
                let flight_recorder = config.flight_recorder.clone().or_else(|| Some(logs.to_owned()));
                Some(connect(&WorldConfig { flight_recorder, ..WorldConfig::clone(config) })?)
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
    pub(super) fn none() -> Self {
        Self { rank: 0, size: 1, communicator: None, strategy: None, parallel: None }
    }

    /// Ranks that are threads of a test.
    #[cfg(test)]
    pub(super) fn among(communicator: Communicator) -> Self {
        let (rank, size) = (communicator.rank(), communicator.world_size());
        Self { rank, size, communicator: Some(communicator), strategy: None, parallel: None }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether there are others, with whom a model will be shared.
    pub(super) fn is_shared(&self) -> bool {
        self.communicator.is_some()
    }

    /// The ranks among which the first reads the data for all and scatters it, if the strategy says so.
    pub(super) fn fed(&self) -> Option<&Communicator> {
        let threads = self.strategy.is_some_and(|strategy| strategy.ranks == Ranks::Threads);
        self.communicator.as_ref().filter(|_| threads)
    }

    /// Shares the work on a model by the configured strategy. All ranks then have rank 0's weights.
    pub(super) fn share(
        &mut self,
        config: &Config,
        store: &ParamStore,
        threads: usize,
    ) -> Result<(), TrainError> {
        let parallel = if let (Some(communicator), Some(strategy)) = (&self.communicator, self.strategy) {
            let options = Options {
                prefetch: config.train.prefetch,
                gathered_bytes: mib(config.train.gathered_mib),
                algorithm: config.comm.algorithm.algorithm(),
                codec: codec_named(config.comm.codec.as_str())?,
                overlap: match config.train.overlap {
                    OverlapKind::Auto => Overlap::Auto,
                    OverlapKind::Always => Overlap::Always,
                    OverlapKind::Never => Overlap::Never,
                },
                threads,
                ..Options::default()
            };
            DataParallel::with_options(store, communicator.clone(), strategy, options)?
        } else {
            DataParallel::alone(store)?
        };
        self.parallel = Some(parallel);
        Ok(())
    }

    /// The most bytes of whole parameters that were gathered at once.
    pub(super) fn peak_gathered_bytes(&self) -> u64 {
        self.parallel.as_ref().map_or(0, |parallel| parallel.peak_gathered_bytes())
    }

    fn parallel(&self) -> Result<&dyn ParallelStrategy, TrainError> {
        let unshared = || TrainError::Setup("a model is used together that was not shared".to_owned());
        self.parallel.as_deref().ok_or_else(unshared)
    }

    /// Who is told about blocks and gradients, if there are others.
    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.parallel.clone().filter(|_| self.is_shared()).map(|parallel| parallel as Arc<dyn Listener>)
    }

    /// Begins a step with gradients of zero.
    pub(super) fn begin_step(&self) -> Result<Step<'_>, TrainError> {
        Ok(self.parallel()?.begin_step()?)
    }

    /// Has `change` change the parameters that this rank owns, and brings what others have changed to this one.
    pub(super) fn update(
        &self,
        mut change: impl FnMut(&[FlatParam]) -> phalanx_tensor::Result<()>,
    ) -> Result<(), TrainError> {
        Ok(self.parallel()?.update(&mut change)?)
    }

    /// How batch statistics are summed over the first `ranks` ranks. Every rank calls this at the same place.
    pub(super) fn stats_sync(&self, ranks: usize) -> Result<Option<Arc<dyn StatsSync>>, TrainError> {
        Ok(self.parallel()?.stats_sync(ranks)?)
    }

    /// Runs `work` with all parameters in this rank's memory. Every rank calls this at the same place.
    pub(super) fn with_all<R>(&self, work: impl FnOnce() -> Result<R, TrainError>) -> Result<R, TrainError> {
        self.unshard()?;
        let result = work();
        self.reshard()?;
        result
    }

    /// Brings all parameters into this rank's memory, where they stay until the update.
    pub(super) fn unshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.unshard()?))
    }

    /// Lets them leave again.
    pub(super) fn reshard(&self) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.reshard()?))
    }

    /// What of the state this rank holds, and which other ranks hold the rest or the same.
    pub(super) fn role(&self) -> Result<ShardRole, TrainError> {
        Ok(self.parallel()?.role())
    }

    /// What the codec of this rank's gradients keeps from step to step.
    pub(super) fn codec_state(&self) -> Vec<(String, Vec<f32>)> {
        self.parallel.as_ref().map_or_else(Vec::new, |parallel| parallel.codec_state())
    }

    /// Takes over what the codec had kept.
    pub(super) fn load_codec_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<(), TrainError> {
        Ok(self.parallel()?.load_codec_state(state)?)
    }

    /// What every rank has to say, known to all, by rank.
    pub(super) fn gather_text(&self, text: &str) -> Result<Vec<String>, TrainError> {
        let Some(communicator) = &self.communicator else { return Ok(vec![text.to_owned()]) };
        let all = communicator.all_gather_bytes(text.as_bytes())?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Bytes of state that this rank holds.
    pub(super) fn bytes(&self) -> StateBytes {
        self.parallel.as_ref().map_or_else(StateBytes::default, |parallel| parallel.bytes())
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's.
    pub(super) fn broadcast_state(&self, store: &ParamStore) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_state(store)?))
    }

    /// Makes all ranks' buffers equal to rank 0's.
    pub(super) fn broadcast_buffers(&self, store: &ParamStore) -> Result<(), TrainError> {
        self.parallel.as_ref().map_or(Ok(()), |parallel| Ok(parallel.broadcast_buffers(store)?))
    }

    /// Replaces each number by its sum over the ranks.
    pub(super) fn sum(&self, values: &mut [f64]) -> Result<(), TrainError> {
        self.communicator.as_ref().map_or(Ok(()), |world| Ok(world.all_reduce(values, ReduceOp::Sum)?))
    }

    /// The sum of one number over the ranks.
    pub(super) fn sum_of(&self, value: f64) -> Result<f64, TrainError> {
        let mut values = [value];
        self.sum(&mut values)?;
        Ok(values[0])
    }

    /// What communication has cost so far.
    pub(super) fn traffic(&self) -> Traffic {
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
    pub(super) fn abort(&self, reason: &str) {
        if let Some(communicator) = &self.communicator {
            communicator.abort(reason);
        }
    }

    /// Leaves the world in good order: nobody goes before all have come this far.
    pub(super) fn finish(&self) -> Result<(), TrainError> {
        if let Some(communicator) = &self.communicator {
            communicator.barrier("end of training")?;
            communicator.shutdown();
        }
        Ok(())
    }
}
