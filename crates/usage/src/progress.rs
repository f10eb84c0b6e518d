//! The training's report to its usage sampler: progress, time spent, bytes held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The progress of a rank and the time of its steps so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProgressCounters {
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
pub struct StateBytes {
    /// Parameters, between steps.
    pub parameters: u64,
    /// Gradients, between steps.
    pub gradients: u64,
    /// State of optimizers, averages, and what codecs and strategies keep, between steps.
    pub optimizer: u64,
    /// Whole parameters of blocks that ran, the most so far.
    pub gathered: u64,
    /// The most bytes that forward kept for backward in a step since the last report.
    pub activations: u64,
}

/// The place where a training reports. A report takes one uncontended lock.
#[derive(Debug)]
pub struct Progress {
    report: Mutex<(ProgressCounters, StateBytes)>,
    wanted: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self { report: Mutex::default(), wanted: AtomicBool::new(true) }
    }
}

impl Progress {
    fn report(&self) -> MutexGuard<'_, (ProgressCounters, StateBytes)> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the progress of the training.
    pub fn set_counters(&self, spent: ProgressCounters) {
        self.report().0 = spent;
    }

    /// Reports the bytes that the training holds, the first time and after each reading: counting them takes longer.
    pub fn set_bytes(&self, held: impl FnOnce() -> StateBytes) {
        if self.wanted.swap(false, Ordering::Relaxed) {
            self.report().1 = held();
        }
    }

    /// Returns the last report.
    pub(super) fn read(&self) -> (ProgressCounters, StateBytes) {
        self.wanted.store(true, Ordering::Relaxed);
        *self.report()
    }
}
