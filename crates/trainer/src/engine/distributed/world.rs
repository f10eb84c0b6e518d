//! A rank's place among the others.

use std::time::Duration;

use phalanx_collectives::{Communicator, Secret, WorldConfig, connect_unless};
use phalanx_sharding::Ranks;

use crate::config::Config;
use crate::engine::error::TrainError;
use crate::launch::{SUPERVISED, StopFlag};

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

    /// A rank in a world that the caller has described.
    pub fn new(config: WorldConfig) -> Self {
        let local_size = config.local_world_size;
        Self { link: Link::Process(Box::new(config)), local_size }
    }

    /// A rank that is a thread of this process, as [`phalanx_collectives::threads`] makes them.
    pub fn thread(communicator: Communicator) -> Self {
        let local_size = communicator.world_size();
        Self { link: Link::Thread(communicator), local_size }
    }

    /// This place in a world whose ranks prove to each other that they know this secret, if there is one.
    #[must_use]
    pub fn with_secret(mut self, secret: Option<Secret>) -> Self {
        if let (Link::Process(config), Some(secret)) = (&mut self.link, secret) {
            config.secret = Some(secret);
        }
        self
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

    /// A text that rank 0 makes once all ranks have met, on every rank. They part afterwards, to meet again for the training:
    /// what they say to each other then goes by what this has said. Only for ranks that are processes; the only rank just
    /// makes its text.
    ///
    /// # Errors
    /// What `make` returns on rank 0; [`TrainError::Comm`] on the others, or if the ranks do not meet; one for which
    /// [`TrainError::is_cancelled`] holds if `stop` is raised before.
    pub fn agree(
        &self,
        stop: &StopFlag,
        make: impl FnOnce() -> Result<String, TrainError>,
    ) -> Result<String, TrainError> {
        let config = match &self.link {
            Link::Process(config) if config.world_size > 1 => config,
            _ => return make(),
        };
        let communicator = connect_unless(config, || stop.is_raised())?;
        let mut text = Vec::new();
        if config.rank == 0 {
            let made = make().inspect_err(|error| communicator.abort(&error.to_string()));
            text = made?.into_bytes();
        }
        let mut length = [text.len() as i64];
        communicator.broadcast(&mut length, 0)?;
        text.resize(usize::try_from(length[0]).unwrap_or(0), 0);
        communicator.broadcast(&mut text[..], 0)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
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

/// The place that a launcher gives this process by its environment: torchrun, SLURM, OpenMPI or MPICH.
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
    Ok(Some(World::new(config)))
}
