//! The address where ranks meet rank 0, and the interface that this rank uses.

use std::net::{IpAddr, Ipv4Addr};

use super::interface;
use super::rank_info::RankInfo;
use super::torchrun::DEFAULT_PORT;
use super::variables::{Variables, port};
use crate::error::{EnvironmentError, Result};

/// The number of ports of a job. Rank 0 listens at the first free one.
pub const PORTS_OF_JOB: u16 = 16;

/// The ports of all jobs, below the ephemeral ports of systems (from 32768 on Linux, 49152 elsewhere).
pub const PORTS: std::ops::Range<u16> = 20_000..32_288;

/// The address where rank 0 listens, and the interface of this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeetingPoint {
    /// The name or address of rank 0's host.
    pub address: String,
    /// The first port where rank 0 may listen.
    pub port: u16,
    /// The number of ports from there on.
    pub ports: u16,
    /// The address that this rank listens on.
    pub bind_addr: IpAddr,
}

impl RankInfo {
    /// Returns the meeting point of this rank's job. `PHALANX_PORT` and `PHALANX_INTERFACE` among the variables override the
    /// launcher.
    ///
    /// # Errors
    /// [`EnvironmentError`](crate::EnvironmentError) if one of them is malformed.
    pub fn meeting_point(&self, get: Variables<'_>) -> Result<MeetingPoint> {
        let (port, ports) = match port(get, "PHALANX_PORT")?.or(self.port) {
            Some(port) => (port, 1),
            None if self.job.is_empty() => (DEFAULT_PORT, 1),
            None => (first_port_of(&self.job), PORTS_OF_JOB),
        };
        let master = self.rank_0.address.as_str();
        // torchrun's agent names its host also if it starts all ranks. They need not listen on a network then.
        let stays_here = self.local_world_size == Some(self.world_size) && get("PHALANX_INTERFACE").is_none();
        if stays_here && interface::is_this_host(master, port) {
            let bind_addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(MeetingPoint { address: bind_addr.to_string(), port, ports, bind_addr });
        }
        let bind_addr = match get("PHALANX_INTERFACE") {
            Some(text) => interface::parse(text.trim(), master, port)
                .map_err(|problem| EnvironmentError::new("PHALANX_INTERFACE", problem))?,
            None if self.rank_0.by_any_address => interface::unspecified_like(master, port),
            None => interface::route_to(master, port),
        };
        // With no address given, rank 0 listens at this interface and no other.
        let address = match self.rank_0.anywhere_here {
            true => interface::reachable_address(bind_addr).to_string(),
            false => master.to_owned(),
        };
        Ok(MeetingPoint { address, port, ports, bind_addr })
    }
}

/// Returns the first of the ports that belong to a job of this name. All ranks of the job compute the same one. Jobs that happen
/// to share ports still tell their ranks apart by name.
fn first_port_of(job: &str) -> u16 {
    // FNV-1a: all ranks must compute the same value, independent of their builds.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let blocks = u64::from(PORTS.end - PORTS.start) / u64::from(PORTS_OF_JOB);
    PORTS.start + (hash % blocks) as u16 * PORTS_OF_JOB
}
