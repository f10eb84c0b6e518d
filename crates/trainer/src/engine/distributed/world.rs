//! A rank's place among the others.

use std::time::Duration;

use phalanx_collectives::{Communicator, WorldConfig};
use phalanx_sharding::Ranks;

use crate::config::Config;
use crate::engine::error::TrainError;
use crate::launch::SUPERVISED;

/// A rank among others: its place, and how to reach them.
#[derive(Debug, Clone)]
pub struct World {
    pub(in crate::engine) link: Link,
    /// Ranks on this host.
    local_size: usize,
}

/// How a rank reaches the others.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Link {
    /// There are none.
    Alone,
    /// They are processes, yet to be met.
    Process(Box<WorldConfig>),
    /// They are threads of this process.
    Thread(Communicator),
}

impl World {
    /// The only rank.
    pub fn alone() -> Self {
        Self { link: Link::Alone, local_size: 1 }
    }

    /// A rank in a world that the caller has described, `local_size` of them on this host.
    pub fn new(config: WorldConfig, local_size: usize) -> Self {
        Self { link: Link::Process(Box::new(config)), local_size }
    }

    /// A rank that is a thread of this process, as [`phalanx_collectives::threads`] makes them.
    pub fn thread(communicator: Communicator) -> Self {
        let local_size = communicator.world_size();
        Self { link: Link::Thread(communicator), local_size }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        match &self.link {
            Link::Alone => 0,
            Link::Process(config) => config.rank,
            Link::Thread(communicator) => communicator.rank(),
        }
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        match &self.link {
            Link::Alone => 1,
            Link::Process(config) => config.world_size,
            Link::Thread(communicator) => communicator.world_size(),
        }
    }

    /// Checks that the configured strategy can be followed here.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if it wants all ranks in one process and these are several.
    pub fn check(&self, config: &Config) -> Result<(), TrainError> {
        if in_one_process(config) && self.size() > 1 && matches!(self.link, Link::Process(_)) {
            return Err(TrainError::Setup(format!(
                "train.strategy = {} has all ranks as threads of one process, but a launcher has started {} processes; \
                use --strategy ddp, which gives the same losses with a process for each rank, or start one process with --ranks {1}",
                config.train.strategy,
                self.size()
            )));
        }
        Ok(())
    }

    /// Compute threads for this rank: `wanted`, or its share of the machine's cores if that is 0.
    pub(in crate::engine) fn threads(&self, wanted: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if wanted > 0 { wanted } else { (cores / self.local_size.max(1)).max(1) }
    }
}

/// Whether the configured strategy has all ranks in one process, as threads.
pub fn in_one_process(config: &Config) -> bool {
    config.train.strategy.ranks == Ranks::Threads
}

/// The place that a launcher gives this process by its environment: torchrun's variables, SLURM's or OpenMPI's.
/// `None` if there is no launcher.
///
/// # Errors
/// If the environment is incomplete or malformed; the message names the variable.
pub fn launcher_world() -> Result<Option<World>, TrainError> {
    let Some(mut config) = WorldConfig::from_env()? else { return Ok(None) };
    if std::env::var_os(SUPERVISED).is_some() {
        // All ranks were started within one moment on this machine; one that is not there soon never comes.
        config.connect_timeout = Duration::from_secs(9);
    }
    let number = |name: &str| std::env::var(name).ok()?.trim().parse().ok();
    let local = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"];
    let local_size = local.into_iter().find_map(number).unwrap_or(1);
    Ok(Some(World::new(config, local_size)))
}
