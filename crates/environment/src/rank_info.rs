//! The record of a rank that launchers fill in.

use super::variables::{Variables, number, required};
use crate::error::Result;

/// The place of a process in its job, as its launcher describes it.
///
/// torchrun alone tells ranks where to meet, and even its port is taken by the agent's own store. The other launchers name the
/// job. The meeting point follows from the host of rank 0 and, without a port, from the job's name
/// ([`RankInfo::meeting_point`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankInfo {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// The number of ranks on this host; `None` if the launcher does not tell.
    pub local_world_size: Option<usize>,
    /// The job's name, equal on all of its ranks and unique to it. Empty if the launcher gives none.
    pub job: String,
    /// The port where rank 0 listens, if one is given.
    pub port: Option<u16>,
    /// The host of rank 0.
    pub rank_0: RankZeroHost,
}

/// The host of rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankZeroHost {
    /// Its name or address.
    pub address: String,
    /// True if ranks may know rank 0 by different addresses, so that it listens at all of its own.
    pub by_any_address: bool,
    /// True if all ranks are on one host and no address is given, so that any interface of it serves.
    pub anywhere_here: bool,
}

impl RankZeroHost {
    /// The host with this name or address only.
    pub(super) fn at(address: String) -> Self {
        Self { address, by_any_address: false, anywhere_here: false }
    }

    /// The host with this name or address, which other ranks may know by another one.
    pub(super) fn by_any_address(address: String) -> Self {
        Self { by_any_address: true, ..Self::at(address) }
    }

    /// Returns the address that the user gives, or loopback if all ranks are on this host.
    pub(super) fn given_or_local(get: Variables<'_>, numbers: &RankNumbers) -> Option<Self> {
        if let Some(address) = get("MASTER_ADDR") {
            return Some(Self::at(address));
        }
        let RankNumbers { world_size, local_world_size, .. } = *numbers;
        let is_local = world_size == 1 || local_world_size == Some(world_size);
        is_local.then(|| Self { anywhere_here: true, ..Self::at("127.0.0.1".to_owned()) })
    }
}

/// The numbers of a rank, as variables state them.
#[derive(Clone, Copy)]
pub(super) struct RankNumbers {
    pub(super) rank: u64,
    pub(super) world_size: u64,
    pub(super) local_rank: u64,
    pub(super) local_world_size: Option<u64>,
}

impl RankNumbers {
    /// Reads the rank, the number of ranks and the local rank from the variables `names`, and the number of local ranks
    /// from `local_world_size`. The variables of the local numbers need not be set.
    pub(super) fn read(
        get: Variables<'_>,
        names: [&'static str; 3],
        local_world_size: Option<&'static str>,
    ) -> Result<Self> {
        let because = if get(names[0]).is_some() { names[0] } else { names[1] };
        let rank = required(get, names[0], because)?;
        let world_size = required(get, names[1], because)?;
        let local_rank = number(get, names[2])?.unwrap_or(rank);
        let local_world_size = local_world_size.map(|name| number(get, name)).transpose()?.flatten();
        Ok(Self { rank, world_size, local_rank, local_world_size })
    }

    /// Completes the record.
    pub(super) fn with(self, job: String, port: Option<u16>, rank_0: RankZeroHost) -> RankInfo {
        RankInfo {
            rank: self.rank as usize,
            world_size: self.world_size as usize,
            local_rank: self.local_rank as usize,
            local_world_size: self.local_world_size.map(|size| size as usize),
            job,
            port,
            rank_0,
        }
    }
}
