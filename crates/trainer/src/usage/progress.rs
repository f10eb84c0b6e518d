//! What a training tells whoever samples its usage: how far it is, what it has spent, what it holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far a rank is and what its steps have cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Steps done.
    pub step: u64,
    /// Seconds of training, those before the run was resumed included.
    pub seconds: f64,
    /// Seconds of training steps in this process.
    pub step_seconds: f64,
    /// Of these, seconds in which the rank waited for data.
    pub data_seconds: f64,
    /// Of these, seconds in which it waited for communication.
    pub communication_exposed_seconds: f64,
    /// Seconds of communication while it computed.
    pub communication_hidden_seconds: f64,
    /// Bytes that it sent to other ranks.
    pub network_sent_bytes: u64,
    /// Bytes that it received from other ranks.
    pub network_received_bytes: u64,
}

/// Bytes that a rank holds, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Parameters, between steps.
    pub parameters: u64,
    /// Gradients, between steps.
    pub gradients: u64,
    /// State of optimizers, averages, and what codecs and strategies keep, between steps.
    pub optimizer: u64,
    /// Whole parameters of blocks that ran, the most so far.
    pub gathered: u64,
    /// What forward has left for backward, the most in a step since they were told before.
    pub activations: u64,
}

/// Where a training leaves word. To say how far it is costs a lock that nobody else holds.
#[derive(Debug)]
pub struct Progress {
    told: Mutex<(Spent, HeldBytes)>,
    wanted: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self { told: Mutex::default(), wanted: AtomicBool::new(true) }
    }
}

impl Progress {
    fn told(&self) -> MutexGuard<'_, (Spent, HeldBytes)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how far the training is.
    pub fn tell(&self, spent: Spent) {
        self.told().0 = spent;
    }

    /// Says what the training holds, the first time, and if anybody has looked since it last said so: to count it takes longer.
    pub fn hold(&self, held: impl FnOnce() -> HeldBytes) {
        if self.wanted.swap(false, Ordering::Relaxed) {
            self.told().1 = held();
        }
    }

    /// What was said last.
    pub(super) fn look(&self) -> (Spent, HeldBytes) {
        self.wanted.store(true, Ordering::Relaxed);
        *self.told()
    }
}
