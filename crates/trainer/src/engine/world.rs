//! A process's place among the ranks.

use std::time::Duration;

use phalanx_collectives::WorldConfig;

use super::TrainError;
use crate::launch::SUPERVISED;

/// A rank among others: its place, and how to reach them.
#[derive(Debug, Clone)]
pub struct World {
    /// `None` for the only rank, which has nobody to reach.
    pub(super) config: Option<WorldConfig>,
    /// Ranks on this host.
    local_size: usize,
}

impl World {
    /// The only rank.
    pub fn alone() -> Self {
        Self { config: None, local_size: 1 }
    }

    /// A rank in a world that the caller has described, `local_size` of them on this host.
    pub fn new(config: WorldConfig, local_size: usize) -> Self {
        Self { config: Some(config), local_size }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.config.as_ref().map_or(0, |config| config.rank)
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.config.as_ref().map_or(1, |config| config.world_size)
    }

    /// Compute threads for this rank: `wanted`, or its share of the machine's cores if that is 0.
    pub(super) fn threads(&self, wanted: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if wanted > 0 { wanted } else { (cores / self.local_size.max(1)).max(1) }
    }
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
