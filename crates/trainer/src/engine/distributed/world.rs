//! A rank's place among the others, before they have met.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_collectives::{Communicator, Secret, WorldConfig, connect_watched};
use phalanx_sharding::Ranks;

use crate::engine::error::TrainError;
use phalanx_config::{Config, SecretPolicy};
use phalanx_run::Invitation;
use phalanx_run::{SUPERVISED, StopFlag};

/// The time in which a joining rank must reach the ranks that invited it.
const MEETING: Duration = Duration::from_secs(10);

/// A rank's place among the others, and how to reach them.
#[derive(Debug, Clone)]
pub struct World {
    pub(in crate::engine) link: Link,
    /// The number of a rank that joins a run.
    pub(in crate::engine) joins: Option<usize>,
    /// Raised when this rank alone is to leave.
    pub(in crate::engine) leave: StopFlag,
    /// The number of ranks that do the same work.
    pub(in crate::engine) duplicates: usize,
    waits: WaitReport,
}

/// A function that receives lines of text.
type LineReceiver = dyn Fn(&str) + Send + Sync;

/// Receives descriptions of the ranks that this one waits for before they meet.
#[derive(Clone, Default)]
struct WaitReport(Option<Arc<LineReceiver>>);

impl std::fmt::Debug for WaitReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitReport").field(&self.0.is_some()).finish()
    }
}

/// The way to the other ranks.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Link {
    /// There are no others.
    Alone,
    /// They are processes.
    Process(Box<WorldConfig>),
    /// They are threads of this process.
    Thread(Communicator),
}

impl World {
    /// Creates the world of the only rank.
    pub fn alone() -> Self {
        Self::by(Link::Alone)
    }

    /// Creates the place of a rank that is a process.
    pub fn new(config: WorldConfig) -> Self {
        Self::by(Link::Process(Box::new(config)))
    }

    /// Creates the place of a rank that is a thread of this process; see [`phalanx_collectives::threads`].
    pub fn thread(communicator: Communicator) -> Self {
        Self::by(Link::Thread(communicator))
    }

    fn by(link: Link) -> Self {
        Self { link, joins: None, leave: StopFlag::default(), duplicates: 1, waits: WaitReport::default() }
    }

    /// Sets the secret that ranks authenticate each other with, if there is one.
    #[must_use]
    pub fn with_secret(mut self, secret: Option<Secret>) -> Self {
        if let (Link::Process(config), Some(secret)) = (&mut self.link, secret) {
            config.credentials.secret = Some(secret);
        }
        self
    }

    /// Marks the rank as one that joins a run, under a number that no other rank of the run has had.
    #[must_use]
    pub fn joining(self, number: usize) -> Self {
        Self { joins: Some(number), ..self }
    }

    /// Adds an innermost axis to the mesh, along which this number of ranks do the same work and count once. For tests of axes without
    /// samples of their own.
    #[must_use]
    pub fn duplicated(self, ranks: usize) -> Self {
        Self { duplicates: ranks, ..self }
    }

    /// Has the rank leave when the flag is raised, if the others can continue without it.
    #[must_use]
    pub fn leaving_on(self, leave: &StopFlag) -> Self {
        Self { leave: leave.clone(), ..self }
    }

    /// Has `report` receive descriptions of the missing ranks while this rank waits for others: on rank 0, and on the first rank of
    /// each host while it looks for rank 0.
    #[must_use]
    pub fn reporting_waits(self, report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { waits: WaitReport(Some(Arc::new(report))), ..self }
    }

    /// Meets the other ranks, unless `stop` is raised before.
    pub(super) fn meet(&self, place: &WorldConfig, stop: &StopFlag) -> Result<Communicator, TrainError> {
        let report = |text: &str| {
            tracing::warn!("{text}");
            if let (Some(report), 0) = (&self.waits.0, place.local_rank) {
                report(&format!("rank {} {text}", place.rank));
            }
        };
        Ok(connect_watched(place, || stop.is_raised(), report)?)
    }

    /// True if ranks are threads of this process.
    pub(in crate::engine) fn is_thread(&self) -> bool {
        matches!(self.link, Link::Thread(_))
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

    /// The number of ranks.
    pub fn size(&self) -> usize {
        match &self.link {
            Link::Alone => 1,
            Link::Process(config) => config.world_size,
            Link::Thread(communicator) => communicator.world_size(),
        }
    }

    /// Checks that the configured strategy can run in this world.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if the strategy needs all ranks in one process and there are several, or if the number of ranks is outside
    /// the bounds of `[elastic]`.
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

    /// Checks that ranks that other hosts can reach share a secret, unless `comm.secret = "none"` trusts the network.
    ///
    /// # Errors
    /// [`TrainError::Setup`], which says how to give one.
    pub fn check_secret(&self, config: &Config) -> Result<(), TrainError> {
        let Link::Process(place) = &self.link else { return Ok(()) };
        let is_alone = place.world_size == 1 && config.elastic().is_none();
        if is_alone || place.credentials.secret.is_some() || place.is_on_loopback() {
            return Ok(());
        }
        require_secret(config, &format!("rank {} at {}", place.rank, place.meeting.bind_addr))
    }

    /// Returns on all ranks the text that `make` makes on rank 0, once all ranks have met. They then leave, to meet again for the
    /// training. `timeout` is `comm.timeout`, in seconds. Only for ranks that are processes; the only rank just makes its text.
    ///
    /// # Errors
    /// Errors of `make` on rank 0; [`TrainError::Comm`] on the others, or if the ranks do not meet. [`TrainError::is_cancelled`] holds if
    /// `stop` is raised before.
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
        let communicator = self.meet(config, stop)?;
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

/// Refuses a world without a secret whose ranks other hosts can reach, as `who` does, unless `comm.secret = "none"`.
///
/// # Errors
/// [`TrainError::Setup`], which says how to give a secret.
pub fn require_secret(config: &Config, who: &str) -> Result<(), TrainError> {
    if config.comm.secret == SecretPolicy::None {
        return Ok(());
    }
    Err(TrainError::Setup(format!(
        "{who}: other hosts can connect to the ranks, which have no secret. Make one with `umask 077; openssl rand -hex 32 > ~/.phalanx-secret` \
         and set PHALANX_SECRET_FILE=~/.phalanx-secret for every rank, or trust the network with --set comm.secret=none"
    )))
}

/// The longest text that ranks agree on before a training, in bytes.
const LONGEST_TEXT: usize = 1 << 20;

/// True if the configured strategy has all ranks as threads of one process.
pub fn in_one_process(config: &Config) -> bool {
    config.train.strategy.ranks == Ranks::Threads
}

/// Reads the place that a launcher gives this process in its environment: torchrun, SLURM, OpenMPI or MPICH. Returns `None` without a
/// launcher.
///
/// # Errors
/// If the environment is incomplete or malformed; the message names the variable.
pub fn launcher_world() -> Result<Option<World>, TrainError> {
    let Some(mut config) = WorldConfig::from_env()? else { return Ok(None) };
    let is_here = config.local_world_size == config.world_size;
    if std::env::var_os(SUPERVISED).is_some() {
        // Ranks of one host start together, so a missing one never comes. Hosts are started one after the other.
        config.timeouts.connect = Duration::from_secs(if is_here { 9 } else { 300 });
    }
    Ok(Some(World::new(config)))
}

/// Returns the place that an invitation gives this process. The secret is in the file that the environment names, or in `secret_file` if
/// it exists.
///
/// # Errors
/// If the environment has malformed interfaces or secrets; the message names the variable.
pub fn invited_world(invitation: &Invitation, secret_file: &Path) -> Result<World, TrainError> {
    let Invitation { rank, world_size, local_world_size, address, port, job } = invitation;
    let get = |name: &str| match name {
        "RANK" => Some(rank.to_string()),
        "WORLD_SIZE" => Some(world_size.to_string()),
        "LOCAL_RANK" => Some((rank % local_world_size.max(&1)).to_string()),
        "LOCAL_WORLD_SIZE" => Some(local_world_size.to_string()),
        "MASTER_ADDR" => Some(address.clone()),
        "MASTER_PORT" | "PHALANX_PORT" => Some(port.to_string()),
        "PHALANX_SECRET_FILE" => std::env::var(name)
            .ok()
            .or_else(|| secret_file.is_file().then(|| secret_file.to_string_lossy().into_owned())),
        // Variables of a launcher are not about that world.
        name if name.starts_with("PHALANX_") => std::env::var(name).ok(),
        _ => None,
    };
    let missing = || TrainError::Setup("an invitation without a place".to_owned());
    let mut config = WorldConfig::from_variables(&get)?.ok_or_else(missing)?;
    config.job.clone_from(job);
    config.timeouts.connect = MEETING;
    Ok(World::new(config))
}
