//! Checks of a [`WorldConfig`] before it is used.

use super::{Timeouts, TransportOptions, WorldConfig};
use crate::control::MOST_RANKS;
use crate::error::{CommError, Result};
use crate::security::Encryption;

/// Heartbeats that may be late or missing before a rank counts as dead.
const HEARTBEATS: u32 = 2;

impl WorldConfig {
    /// Checks that the options are possible and consistent.
    pub(crate) fn validate(&self) -> Result<()> {
        let problem = self.problem().or_else(|| self.transport.problem()).or_else(|| self.timeouts.problem());
        match problem {
            None => Ok(()),
            Some(problem) => Err(CommError::Argument { operation: "connect", problem }),
        }
    }

    fn problem(&self) -> Option<String> {
        let Self { rank, world_size, .. } = *self;
        if world_size > MOST_RANKS {
            Some(format!("a world of {world_size} ranks; at most {MOST_RANKS} are possible"))
        } else if rank >= world_size {
            Some(format!("rank {rank} does not exist in a world of {world_size}"))
        } else if self.credentials.encryption == Encryption::All && self.credentials.secret.is_none() {
            let problem = "encryption of all connections needs a secret on all ranks (PHALANX_SECRET_FILE)";
            Some(problem.to_owned())
        } else {
            None
        }
    }
}

impl TransportOptions {
    fn problem(&self) -> Option<String> {
        if !(1..=64).contains(&self.streams) {
            Some(format!("{} streams between two ranks; 1 to 64 are possible", self.streams))
        } else if self.simulated.is_some() && !cfg!(target_os = "linux") {
            let problem = "a simulated link needs Linux, where all processes of a machine share a clock";
            Some(problem.to_owned())
        } else if self.simulated_on_host.is_some() && self.simulated.is_none() {
            let problem =
                "a simulated link inside hosts needs one between them (TransportOptions::simulated)";
            Some(problem.to_owned())
        } else {
            None
        }
    }
}

impl Timeouts {
    fn problem(&self) -> Option<String> {
        let Self { connect, operation, heartbeat_interval, heartbeat_timeout } = *self;
        if heartbeat_interval.is_zero() || heartbeat_timeout < HEARTBEATS * heartbeat_interval {
            Some(format!(
                "a heartbeat timeout of {heartbeat_timeout:?} with a heartbeat every {heartbeat_interval:?}; the timeout must be at least \
                 {HEARTBEATS} times the interval"
            ))
        } else if connect.is_zero() || operation.is_zero() {
            Some(format!(
                "a timeout of {connect:?} for connecting and {operation:?} for operations; both must be longer"
            ))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_times_scale_with_that_of_operations() {
        let local = WorldConfig::local(0, 2, 1);
        let times = |config: &WorldConfig| {
            let Timeouts { connect, operation, heartbeat_interval, heartbeat_timeout } = config.timeouts;
            [operation, connect, heartbeat_timeout, heartbeat_interval].map(|time| time.as_millis())
        };
        for (seconds, expected) in [
            (600, [600_000, 60_000, 4_000, 500]),
            // A short limit for operations leaves ranks that start as much time as before.
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
        let ms = Duration::from_millis;
        let times = Timeouts::default();
        for (timeouts, words) in [
            (Timeouts { heartbeat_timeout: ms(900), ..times }, "at least 2 times"),
            (Timeouts { heartbeat_interval: ms(0), ..times }, "heartbeat every"),
            (Timeouts { connect: ms(0), ..times }, "must be longer"),
            (Timeouts { operation: ms(0), ..times }, "must be longer"),
        ] {
            let config = WorldConfig { timeouts, ..WorldConfig::local(0, 2, 1) };
            let error = config.validate().expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
