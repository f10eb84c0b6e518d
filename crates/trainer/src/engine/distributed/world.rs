//! A rank's place among the others.

use std::path::Path;
use std::time::Duration;

use phalanx_collectives::{Communicator, Secret, WorldConfig, connect_unless};
use phalanx_sharding::Ranks;

use crate::config::Config;
use crate::engine::error::TrainError;
use phalanx_run::Invitation;
use phalanx_run::{SUPERVISED, StopFlag};

/// How long a newcomer looks for those who have asked it in a moment ago.
const MEETING: Duration = Duration::from_secs(10);

/// A rank among others: its place, and how to reach them.
#[derive(Debug, Clone)]
pub struct World {
    pub(in crate::engine) link: Link,
    /// The number of a rank that comes to others who have begun.
    pub(in crate::engine) joins: Option<usize>,
    /// Raised when this rank alone is to leave.
    pub(in crate::engine) leave: StopFlag,
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
        Self::by(Link::Alone)
    }

    /// A rank in a world that the caller has described.
    pub fn new(config: WorldConfig) -> Self {
        Self::by(Link::Process(Box::new(config)))
    }

    /// A rank that is a thread of this process, as [`phalanx_collectives::threads`] makes them.
    pub fn thread(communicator: Communicator) -> Self {
        Self::by(Link::Thread(communicator))
    }

    fn by(link: Link) -> Self {
        Self { link, joins: None, leave: StopFlag::default() }
    }

    /// This place in a world whose ranks prove to each other that they know this secret, if there is one.
    #[must_use]
    pub fn with_secret(mut self, secret: Option<Secret>) -> Self {
        if let (Link::Process(config), Some(secret)) = (&mut self.link, secret) {
            config.secret = Some(secret);
        }
        self
    }

    /// The rank as one that comes to others who have begun, under a number that no other rank of the run has had.
    #[must_use]
    pub fn joining(self, number: usize) -> Self {
        Self { joins: Some(number), ..self }
    }

    /// The rank as one that leaves when the flag is raised, if the others can go on without it.
    #[must_use]
    pub fn leaving_on(self, leave: &StopFlag) -> Self {
        Self { leave: leave.clone(), ..self }
    }

    /// The number of this rank in the run: its rank, unless it joins.
    pub fn number(&self) -> usize {
        self.joins.unwrap_or_else(|| self.rank())
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
    /// [`TrainError::Setup`] if it wants all ranks in one process and these are several, or if these are more or fewer than a world that
    /// changes may have.
    pub fn check(&self, config: &Config) -> Result<(), TrainError> {
        if in_one_process(config) && self.size() > 1 && matches!(self.link, Link::Process(_)) {
            return Err(TrainError::Setup(format!(
                "train.strategy = {} has all ranks as threads of one process, but a launcher has started {} processes; \
                use --strategy ddp, which gives the same losses with a process for each rank, or start one process with --ranks {1}",
                config.train.strategy,
                self.size()
            )));
        }
        match config.elastic() {
            Some(bounds) if !bounds.contains(&self.size()) => Err(TrainError::Setup(format!(
                "a launcher has started {} ranks, and there may be {} (elastic.min) to {} (elastic.max)",
                self.size(),
                bounds.start(),
                bounds.end()
            ))),
            _ => Ok(()),
        }
    }

    /// A text that rank 0 makes once all ranks have met, on every rank. They part afterwards, to meet again for the training:
    /// what they say to each other then goes by what this has said. `timeout` is `comm.timeout`. Only for ranks that are processes; the only rank just
    /// makes its text.
    ///
    /// # Errors
    /// What `make` returns on rank 0; [`TrainError::Comm`] on the others, or if the ranks do not meet; one for which
    /// [`TrainError::is_cancelled`] holds if `stop` is raised before.
    pub fn agree(
        &self,
        stop: &StopFlag,
        timeout: f64,
        make: impl FnOnce() -> Result<String, TrainError>,
    ) -> Result<String, TrainError> {
        let config = match &self.link {
            Link::Process(config) if config.world_size > 1 => config,
            _ => return make(),
        };
        let config = &config.as_ref().clone().with_timeout(Duration::from_secs_f64(timeout));
        let communicator = connect_unless(config, || stop.is_raised())?;
        let mut text = Vec::new();
        if config.rank == 0 {
            let made = make().inspect_err(|error| communicator.abort(&error.to_string()));
            text = made?.into_bytes();
        }
        let mut length = [text.len() as i64];
        communicator.broadcast(&mut length, 0)?;
        let length = usize::try_from(length[0]).ok().filter(|length| *length <= LONGEST_TEXT);
        let Some(length) = length else {
            return Err(TrainError::Setup("rank 0 announces a text that is far too long".to_owned()));
        };
        text.resize(length, 0);
        communicator.broadcast(&mut text[..], 0)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The longest text that ranks agree on before a training: the name of a folder, or a little more.
const LONGEST_TEXT: usize = 1 << 20;

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
    let is_here = config.local_world_size == config.world_size;
    if std::env::var_os(SUPERVISED).is_some() {
        // Ranks of one host were started within one moment, and one that is not there soon never comes; hosts are started by
        // somebody, one after the other.
        config.connect_timeout = Duration::from_secs(if is_here { 9 } else { 300 });
    }
    Ok(Some(World::new(config)))
}

/// The place that others have given this process, who have begun before it. Their secret is where the environment says, or else in
/// `secret_file`, if it is there.
///
/// # Errors
/// If the environment says something about interfaces or secrets that cannot be; the message names the variable.
pub fn invited_world(invitation: &Invitation, secret_file: &Path) -> Result<World, TrainError> {
    let Invitation { rank, world_size, local_world_size, address, port, job } = invitation;
    let told = |name: &str| match name {
        "RANK" => Some(rank.to_string()),
        "WORLD_SIZE" => Some(world_size.to_string()),
        "LOCAL_RANK" => Some((rank % local_world_size.max(&1)).to_string()),
        "LOCAL_WORLD_SIZE" => Some(local_world_size.to_string()),
        "MASTER_ADDR" => Some(address.clone()),
        "MASTER_PORT" | "PHALANX_PORT" => Some(port.to_string()),
        "PHALANX_SECRET_FILE" => std::env::var(name)
            .ok()
            .or_else(|| secret_file.is_file().then(|| secret_file.to_string_lossy().into_owned())),
        // What a launcher says of this process is not about that world.
        name if name.starts_with("PHALANX_") => std::env::var(name).ok(),
        _ => None,
    };
    let missing = || TrainError::Setup("an invitation has no place in it".to_owned());
    let config = WorldConfig::from_variables(&told)?.ok_or_else(missing)?;
    Ok(World::new(WorldConfig { job: job.clone(), connect_timeout: MEETING, ..config }))
}
