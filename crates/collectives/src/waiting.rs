//! Limits of waiting for another rank, and the problems that end a wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The reason why bytes did not arrive, with the rank that they should have come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The connection to the rank is gone.
    Closed(usize),
    /// The rank sent nothing in the allowed time.
    Timeout(usize),
    /// The bytes differ from those that the rank sent.
    Altered(usize),
}

/// The fault of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkFault {
    Closed,
    Timeout,
    Altered,
}

/// The longest wait for another rank, and the failure flag that ends it earlier.
#[derive(Debug, Clone)]
pub(crate) struct WaitLimits {
    pub(crate) failure: Arc<Failure>,
    pub(crate) timeout: Duration,
}

impl WaitLimits {
    /// Returns the reason to end a wait that began at `start`, if there is one.
    pub(crate) fn ended(&self, start: Instant) -> Option<LinkFault> {
        if self.failure.is_set() {
            return Some(LinkFault::Closed);
        }
        (start.elapsed() > self.timeout).then_some(LinkFault::Timeout)
    }
}
