//! The first failure of a world, as this rank knows it: set once and shared by all threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::CommError;

/// The reason why a world broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rank is lost.
    Lost(usize),
    /// A rank gave up.
    Aborted(usize, String),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(rank) => write!(f, "rank {rank} was lost"),
            Self::Aborted(rank, reason) => write!(f, "rank {rank} gave up: {reason}"),
        }
    }
}

impl Cause {
    /// Returns the error of the operation with number `sequence` that it ended.
    pub(crate) fn error(self, operation: String, sequence: u64) -> CommError {
        match self {
            Self::Lost(rank) => CommError::PeerLost { rank, operation, sequence },
            Self::Aborted(rank, reason) => CommError::Aborted { rank, reason },
        }
    }
}

/// The first cause, and callbacks for it.
#[derive(Default)]
pub(crate) struct Failure {
    /// True if there is a cause; for frequent checks.
    is_set: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cause: Option<Cause>,
    wake: Vec<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Failure").field(&self.get()).finish()
    }
}

impl Failure {
    /// True if the world is broken.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns the cause, if the world is broken.
    pub(crate) fn get(&self) -> Option<Cause> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cause.clone()
    }

    /// Records a cause and wakes all waiting threads. Only the first counts; returns whether this was it.
    pub(crate) fn set(&self, cause: Cause) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cause.is_some() {
            return false;
        }
        state.cause = Some(cause);
        self.is_set.store(true, Ordering::Release);
        state.wake.iter().for_each(|wake| wake());
        self.changed.notify_all();
        true
    }

    /// Calls `wake` when the world breaks; at once if it is broken.
    pub(crate) fn on_break(&self, wake: impl Fn() + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cause.is_some() {
            wake();
        }
        state.wake.push(Box::new(wake));
    }

    /// Waits up to `at_most` for a cause. The thread that sees a closed socket may not know the cause yet.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Cause> {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.cause.is_some() || left.is_zero() {
                return state.cause.clone();
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
