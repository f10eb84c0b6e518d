//! The communication of a rank.

use std::time::Duration;

use phalanx_collectives::CommStats;
use phalanx_sharding::pipeline::StageTraffic;

/// The communication of a rank so far.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Traffic {
    pub(in crate::engine) bytes_sent: u64,
    /// The part of them that answered requests for other ranks' steps, also between steps of this rank.
    pub(in crate::engine) bytes_answered: u64,
    pub(in crate::engine) bytes_received: u64,
    /// Time in which the loop waited.
    pub(in crate::engine) exposed: Duration,
    /// Time in which the communication thread worked.
    pub(in crate::engine) busy: Duration,
}

impl From<CommStats> for Traffic {
    fn from(stats: CommStats) -> Self {
        Self {
            bytes_sent: stats.bytes_sent,
            bytes_answered: stats.bytes_answered,
            bytes_received: stats.bytes_received,
            exposed: Duration::from_secs_f64(stats.seconds_exposed),
            busy: Duration::from_secs_f64(stats.seconds_busy),
        }
    }
}

impl From<StageTraffic> for Traffic {
    fn from(traffic: StageTraffic) -> Self {
        let StageTraffic { bytes_sent, bytes_received, waited } = traffic;
        Self { bytes_sent, bytes_received, exposed: waited, busy: waited, ..Self::default() }
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_answered: self.bytes_answered + other.bytes_answered,
            bytes_received: self.bytes_received + other.bytes_received,
            exposed: self.exposed + other.exposed,
            busy: self.busy + other.busy,
        }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    /// The communication since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_answered: self.bytes_answered.saturating_sub(before.bytes_answered),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            exposed: self.exposed.saturating_sub(before.exposed),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}
