//! Options of a rank that joins a world.

#[cfg(test)]
mod tests;
mod validate;
mod variables;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::algorithms::cost::CostModel;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use crate::security::Credentials;
use crate::simulated::SimulatedLink;
use phalanx_environment::{MeetingPoint, registration_address};

/// The time limit of an operation by default.
pub(crate) const DEFAULT_OP_TIMEOUT: Duration = Duration::from_secs(600);

/// A rank's place in a world, and the options of its connections.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldConfig {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// The number of ranks on this rank's host; 1 if the launcher does not tell.
    pub local_world_size: usize,
    /// The job's name, equal on every rank. Ranks of different jobs refuse each other at the rendezvous.
    pub job: String,
    /// The address where rank 0 accepts registrations, and the interface that this rank listens on.
    pub meeting: MeetingPoint,
    /// The host that this rank counts to, if not the machine that it runs on. Ranks with one name are taken to be near each
    /// other, and those with different names far. They share memory only on one machine.
    pub host: Option<String>,
    /// Properties of the links between ranks.
    pub transport: TransportOptions,
    /// The secret of the world, and the connections that are encrypted; equal on every rank.
    pub credentials: Credentials,
    /// The algorithm of operations that name none; equal on every rank.
    pub algorithm: Algorithm,
    /// Costs of links from an earlier world of this kind ([`crate::Communicator::costs`]); equal on every rank. Nothing is
    /// measured then, and [`Algorithm::Auto`] chooses as in that world.
    pub costs: Option<CostModel>,
    /// The folder to which this rank writes its flight record `rank-N.flight.json` when the world breaks
    /// ([`crate::FlightRecord`]).
    pub flight_recorder: Option<PathBuf>,
    /// Time limits.
    pub timeouts: Timeouts,
}

/// Properties of the links between ranks; equal on every rank.
#[derive(Debug, Clone, PartialEq)]
pub struct TransportOptions {
    /// True if ranks of one host share memory (Linux). Otherwise they send messages.
    pub shared_memory: bool,
    /// TCP connections between each pair of ranks. Several of them make better use of a long-distance link.
    pub streams: usize,
    /// The link that messages between ranks simulate, one for each rank. All ranks must be on one machine (Linux) and share no
    /// memory then.
    pub simulated: Option<SimulatedLink>,
    /// The simulated link between ranks that count to one host ([`WorldConfig::host`]), if it differs from `simulated`.
    pub simulated_on_host: Option<SimulatedLink>,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { shared_memory: true, streams: 1, simulated: None, simulated_on_host: None }
    }
}

/// Time limits of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest wait for all ranks to register and connect.
    pub connect: Duration,
    /// The longest duration of an operation.
    pub operation: Duration,
    /// The time between heartbeats.
    pub heartbeat_interval: Duration,
    /// The silence after which a rank counts as dead.
    pub heartbeat_timeout: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(60),
            operation: DEFAULT_OP_TIMEOUT,
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(4),
        }
    }
}

impl WorldConfig {
    /// Returns the options of a rank whose world is on this machine and meets at a port of the loopback interface.
    pub fn local(rank: usize, world_size: usize, port: u16) -> Self {
        Self {
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            job: String::new(),
            meeting: MeetingPoint {
                address: "127.0.0.1".into(),
                port,
                ports: 1,
                bind_addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
            },
            host: None,
            transport: TransportOptions::default(),
            credentials: Credentials::default(),
            algorithm: Algorithm::Auto,
            costs: None,
            flight_recorder: None,
            timeouts: Timeouts::default(),
        }
    }

    /// Returns these options with another time limit for operations.
    ///
    /// A limit above the default of ten minutes scales the other times by the same factor: with an hour, ranks wait six times as
    /// long for each other and for heartbeats.
    #[must_use]
    pub fn with_timeout(self, operation: Duration) -> Self {
        let factor = (operation.as_secs_f64() / DEFAULT_OP_TIMEOUT.as_secs_f64()).max(1.0);
        let Timeouts { connect, heartbeat_interval, heartbeat_timeout, .. } = self.timeouts;
        let timeouts = Timeouts {
            operation,
            connect: connect.mul_f64(factor),
            heartbeat_interval: heartbeat_interval.mul_f64(factor),
            heartbeat_timeout: heartbeat_timeout.mul_f64(factor),
        };
        Self { timeouts, ..self }
    }

    /// Returns the ports where rank 0 may listen.
    pub(crate) fn ports(&self) -> RangeInclusive<u16> {
        let MeetingPoint { port, ports, .. } = self.meeting;
        port..=port.saturating_add(ports.saturating_sub(1))
    }

    /// Returns the address where rank 0 listens, with the first of its ports.
    pub(crate) fn master_address(&self) -> Result<SocketAddr> {
        let found = (self.meeting.address.as_str(), self.meeting.port)
            .to_socket_addrs()
            .map_err(|error| self.rendezvous_error(format!("cannot resolve: {error}")));
        // A name may have addresses of both families; the one of this rank's interface is meant.
        let all: Vec<_> = found?.collect();
        let same = all.iter().find(|address| address.is_ipv4() == self.meeting.bind_addr.is_ipv4());
        same.or(all.first()).copied().ok_or_else(|| self.rendezvous_error("the name has no address"))
    }

    /// Returns the address where rank 0 accepts registrations, as this rank would listen there.
    pub(crate) fn registration_ip(&self) -> Result<IpAddr> {
        let master = &self.meeting.address;
        let is_name = master.parse::<IpAddr>().is_err() && master != "localhost";
        Ok(registration_address(self.meeting.bind_addr, self.master_address()?.ip(), is_name))
    }

    /// True if only processes of this host can connect to this rank: it listens on the loopback interface alone.
    pub fn is_on_loopback(&self) -> bool {
        self.meeting.bind_addr.is_loopback() && self.registration_ip().is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns the address of the rendezvous, for errors.
    pub(crate) fn meeting_text(&self) -> String {
        format!("{}:{}", self.meeting.address, self.meeting.port)
    }

    /// Returns an error of the rendezvous.
    pub(crate) fn rendezvous_error(&self, problem: impl Into<String>) -> CommError {
        CommError::Rendezvous { address: self.meeting_text(), problem: problem.into() }
    }

    /// Returns the error of a rank that was cancelled during the rendezvous.
    pub(crate) fn cancelled(&self, during: impl Into<String>) -> CommError {
        CommError::Cancelled { address: self.meeting_text(), during: during.into() }
    }
}
