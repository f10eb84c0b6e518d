//! Waiting for another rank: how long, what ends it earlier, and what is then the matter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Why bytes did not arrive, and from which member of the world they did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The connection to the rank is gone.
    Closed(usize),
    /// Nothing came from the rank in the allowed time.
    Timeout(usize),
    /// What came is not what the rank has sent.
    Altered(usize),
}

/// Why one link does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    Closed,
    Timeout,
    Altered,
}

/// How long to wait, and what ends the wait earlier.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub(crate) failure: Arc<Failure>,
    pub(crate) timeout: Duration,
}

impl Patience {
    /// Why a wait since `start` should end, if it should.
    pub(crate) fn ended(&self, start: Instant) -> Option<Broken> {
        if self.failure.is_set() {
            return Some(Broken::Closed);
        }
        (start.elapsed() > self.timeout).then_some(Broken::Timeout)
    }
}
