//! Costs of communication.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::simulated::Clock;

/// The cost of a communicator's operations on this rank so far. For buffers in GPU memory the seconds are those of the host, which
/// issues operations and compares them among ranks; they do not include the GPU's time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CommStats {
    /// Finished operations.
    pub operations: u64,
    /// Bytes sent to other ranks, with headers.
    pub bytes_sent: u64,
    /// The part of them with which a thread of its own answered requests for other ranks' steps, at any time: also between steps of
    /// this rank.
    pub bytes_answered: u64,
    /// Bytes received from other ranks, with headers.
    pub bytes_received: u64,
    /// Seconds that the communication thread worked or waited for peers.
    pub seconds_busy: f64,
    /// Seconds that callers were blocked: the cost that computation did not hide.
    pub seconds_exposed: f64,
}

impl std::ops::Add for CommStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_answered: self.bytes_answered + other.bytes_answered,
            bytes_received: self.bytes_received + other.bytes_received,
            seconds_busy: self.seconds_busy + other.seconds_busy,
            seconds_exposed: self.seconds_exposed + other.seconds_exposed,
        }
    }
}

/// Counters shared by callers and the communication thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stats: Mutex<CommStats>,
    clock: Clock,
    /// The end of the last operation by a simulated clock.
    over: AtomicU64,
}

impl Counters {
    /// The counters of a communicator with this clock.
    pub(crate) fn by(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Returns the rank's time.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Records the start of an operation, not before the end of the last one, and returns it.
    pub(crate) fn begin(&self) -> Duration {
        self.clock.catch_up(self.over.load(Ordering::Acquire));
        self.clock.now()
    }

    pub(crate) fn read(&self) -> CommStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of an operation that started at `start`.
    pub(crate) fn operation(&self, begun: Duration, sent: u64, received: u64) {
        self.over.store(self.clock.nanos(), Ordering::Release);
        let busy = self.clock.now().saturating_sub(begun);
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.operations += 1;
        stats.bytes_sent += sent;
        stats.bytes_received += received;
        stats.seconds_busy += busy.as_secs_f64();
    }

    /// Adds the bytes of an operation that is counted elsewhere.
    pub(crate) fn moved(&self, sent: u64, received: u64) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.bytes_sent += sent;
        stats.bytes_received += received;
    }

    pub(crate) fn exposed(&self, waited: Duration) {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).seconds_exposed += waited.as_secs_f64();
    }
}
