//! What a process must know to join a world.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use super::encryption::Encryption;
use super::environment::Ask;
use super::secret::Secret;
use crate::algorithms::cost::CostModel;
use crate::control::MOST_RANKS;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use crate::simulated::SimulatedLink;

/// How long an operation may take by default.
pub(super) const DEFAULT_OP_TIMEOUT: Duration = Duration::from_secs(600);

/// Signs of life that may be late or missing before a rank counts as dead.
const SIGNS: u32 = 2;

/// A rank's place in a world, and where the world meets.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldConfig {
    /// This rank, from 0.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// How many ranks are on this rank's host, as far as its launcher says; 1 otherwise.
    pub local_world_size: usize,
    /// The job's name, the same on every rank: ranks of different jobs refuse each other when they meet.
    pub job: String,
    /// Host name or address where rank 0 listens.
    pub master_addr: String,
    /// Port where rank 0 listens.
    pub master_port: u16,
    /// How many ports from `master_port` on rank 0 may listen at: it takes the first that is free, and the others look for
    /// it at all of them. The same on every rank.
    pub master_ports: u16,
    /// The interface that this rank listens on; loopback unless told otherwise.
    pub bind_addr: IpAddr,
    /// Whether ranks share memory if all are on one host (Linux); the same on every rank. Otherwise they send messages.
    pub shared_memory: bool,
    /// Which host this rank counts to, if not the machine that it runs on: ranks of one name are taken to be near each
    /// other, those of different names far. They share memory only on one machine.
    pub host: Option<String>,
    /// TCP connections between each two ranks; the same on every rank. More than one fill a long way better.
    pub streams: usize,
    /// What every connection must prove to know; the same on every rank.
    pub secret: Option<Secret>,
    /// Which connections are encrypted, where there is a secret; the same on every rank.
    pub encryption: Encryption,
    /// The link over which messages between ranks go as if it was that of each rank, all of which must be on one machine (Linux);
    /// the same on every rank. They share no memory then.
    pub link: Option<SimulatedLink>,
    /// With [`WorldConfig::link`]: the link between ranks that count to one host ([`WorldConfig::host`]), if it is another; the same on
    /// every rank.
    pub host_link: Option<SimulatedLink>,
    /// Which way bytes go if a call does not say; the same on every rank.
    pub algorithm: Algorithm,
    /// What links cost, from an earlier world of this kind ([`crate::Communicator::costs`]); the same on every rank.
    /// Nothing is measured then, and the choices of [`Algorithm::Auto`] are those of that world.
    pub costs: Option<CostModel>,
    /// The folder to which this rank writes what it did last when the world breaks, as `rank-N.flight.json` ([`crate::FlightRecord`]).
    pub flight_recorder: Option<PathBuf>,
    /// How long to wait for all ranks.
    pub connect_timeout: Duration,
    /// How long an operation may take.
    pub op_timeout: Duration,
    /// Time between signs of life.
    pub heartbeat_interval: Duration,
    /// Silence after which a rank counts as dead.
    pub heartbeat_timeout: Duration,
}

impl WorldConfig {
    /// A world on this machine that meets at a loopback port.
    pub fn local(rank: usize, world_size: usize, port: u16) -> Self {
        Self {
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            job: String::new(),
            master_addr: "127.0.0.1".into(),
            master_port: port,
            master_ports: 1,
            bind_addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
            shared_memory: true,
            host: None,
            streams: 1,
            secret: None,
            encryption: Encryption::default(),
            link: None,
            host_link: None,
            algorithm: Algorithm::Auto,
            costs: None,
            flight_recorder: None,
            connect_timeout: Duration::from_secs(60),
            op_timeout: DEFAULT_OP_TIMEOUT,
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(4),
        }
    }

    /// The place that a launcher's environment gives this process: torchrun's, that of OpenMPI's `mpirun`, of MPICH's
    /// `mpiexec`, or of SLURM's `srun`. `None` if no launcher has set any.
    ///
    /// `RANK` and `WORLD_SIZE` (torchrun's) come first. Rank 0 is at `MASTER_ADDR` if that is set; if all ranks are on one
    /// host, on loopback; otherwise where the launcher says: SLURM's first node (of which `scontrol` is asked if its name does not
    /// resolve), the host of OpenMPI's `mpirun`, what rank 0
    /// tells MPICH's. It listens at `PHALANX_PORT` or `MASTER_PORT`, if they are set. If they are not, and under torchrun,
    /// whose agent has its own store at `MASTER_PORT`, it takes the first free one of sixteen ports between 20000 and 32287
    /// that belong to the job's name ([`WorldConfig::job`]).
    ///
    /// Under MPICH the launcher is asked for that name, unless `MASTER_ADDR` and `MASTER_PORT` are both set; if ranks are on
    /// several hosts, this waits until all have asked. MPI itself must not begin afterwards in the same process.
    ///
    /// # Errors
    /// [`CommError::Environment`] naming the variable that is missing or malformed.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// The place that variables give this process that `get` looks up, as [`WorldConfig::from_env`] reads those of the environment.
    ///
    /// # Errors
    /// [`CommError::Environment`] naming the variable that is missing or malformed.
    pub fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let pmi = |rank, exchange| super::pmi::ask(get("PMI_FD").as_deref(), rank, exchange);
        super::environment::read(get, &Ask { pmi: &pmi, node: &super::scontrol::reach })
    }

    /// The place where an operation may take so long. Where that is longer than the ten minutes of [`WorldConfig::local`], ranks are
    /// waited for as much longer, and count as dead after as much more silence: with an hour six times as long.
    #[must_use]
    pub fn with_timeout(self, op_timeout: Duration) -> Self {
        let more = (op_timeout.as_secs_f64() / DEFAULT_OP_TIMEOUT.as_secs_f64()).max(1.0);
        Self {
            op_timeout,
            connect_timeout: self.connect_timeout.mul_f64(more),
            heartbeat_interval: self.heartbeat_interval.mul_f64(more),
            heartbeat_timeout: self.heartbeat_timeout.mul_f64(more),
            ..self
        }
    }

    /// The ports where rank 0 may listen.
    pub(super) fn ports(&self) -> std::ops::RangeInclusive<u16> {
        self.master_port..=self.master_port.saturating_add(self.master_ports.saturating_sub(1))
    }

    /// Where rank 0 listens, or the first place where it may.
    pub(super) fn master_address(&self) -> Result<SocketAddr> {
        let place = (self.master_addr.as_str(), self.master_port);
        let found =
            place.to_socket_addrs().map_err(|error| self.rendezvous(format!("cannot resolve: {error}")));
        // A name may have addresses of both families; the one that fits the interface is meant.
        let all: Vec<_> = found?.collect();
        let same = all.iter().find(|address| address.is_ipv4() == self.bind_addr.is_ipv4());
        same.or(all.first()).copied().ok_or_else(|| self.rendezvous("the name has no address"))
    }

    /// Checks that the numbers make sense.
    pub(super) fn validate(&self) -> Result<()> {
        let problem = if self.world_size > MOST_RANKS {
            format!("a world of {} ranks; there can be {MOST_RANKS}", self.world_size)
        } else if self.rank >= self.world_size {
            format!("rank {} does not exist in a world of {}", self.rank, self.world_size)
        } else if !(1..=64).contains(&self.streams) {
            format!("{} streams between two ranks; there can be 1 to 64", self.streams)
        } else if self.encryption == Encryption::All && self.secret.is_none() {
            "encryption of all connections needs a secret that all ranks know (PHALANX_SECRET_FILE)"
                .to_owned()
        } else if self.link.is_some() && !cfg!(target_os = "linux") {
            "a simulated link needs Linux, whose clock all processes of a machine share".to_owned()
        } else if self.heartbeat_interval.is_zero()
            || self.heartbeat_timeout < SIGNS * self.heartbeat_interval
        {
            format!(
                "a rank counts as dead after {:?} of silence, and gives signs of life every {:?}; the first must be at least {SIGNS} times as \
                 long",
                self.heartbeat_timeout, self.heartbeat_interval
            )
        } else if self.connect_timeout.is_zero() || self.op_timeout.is_zero() {
            format!(
                "ranks are waited for {:?}, and operations {:?}; both must be longer",
                self.connect_timeout, self.op_timeout
            )
        } else if self.host_link.is_some() && self.link.is_none() {
            "a link inside hosts is simulated where one between them is (WorldConfig::link)".to_owned()
        } else {
            return Ok(());
        };
        Err(CommError::Argument { operation: "connect", problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_times_follow_that_of_operations() {
        let local = WorldConfig::local(0, 2, 1);
        let times = |config: &WorldConfig| {
            [config.op_timeout, config.connect_timeout, config.heartbeat_timeout, config.heartbeat_interval]
                .map(|time| time.as_millis())
        };
        for (seconds, expected) in [
            (600, [600_000, 60_000, 4_000, 500]),
            // Who is impatient with operations is not with ranks that begin.
            (20, [20_000, 60_000, 4_000, 500]),
            (3600, [3_600_000, 360_000, 24_000, 3_000]),
        ] {
            let config = local.clone().with_timeout(Duration::from_secs(seconds));
            assert_eq!(times(&config), expected);
            assert_eq!(config.validate(), Ok(()));
        }
    }

    #[test]
    fn times_that_contradict_each_other_are_refused() {
        let local = WorldConfig::local(0, 2, 1);
        let ms = Duration::from_millis;
        for (config, words) in [
            (WorldConfig { heartbeat_timeout: ms(900), ..local.clone() }, "at least 2 times"),
            (WorldConfig { heartbeat_interval: ms(0), ..local.clone() }, "signs of life"),
            (WorldConfig { connect_timeout: ms(0), ..local.clone() }, "must be longer"),
            (WorldConfig { op_timeout: ms(0), ..local.clone() }, "must be longer"),
        ] {
            let error = config.validate().expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
