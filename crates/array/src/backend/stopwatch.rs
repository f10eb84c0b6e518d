//! Timing of work on a device.

use crate::Result;

/// Times at which a device reaches points of its queue, measured without waiting.
pub trait Stopwatch: std::fmt::Debug + Send {
    /// Records the time at which all codec work queued so far is done.
    ///
    /// # Errors
    /// Errors of the back end.
    fn note(&mut self) -> Result<()>;

    /// Records the time at which all computing queued so far is done.
    ///
    /// # Errors
    /// Errors of the back end.
    fn note_computing(&mut self) -> Result<()>;

    /// Returns seconds from the first record to each, in order. Returns `None` if the device has not reached all,
    /// unless `wait` is true.
    ///
    /// # Errors
    /// Errors of the back end, also of earlier work.
    fn seconds(&self, wait: bool) -> Result<Option<Vec<f64>>>;
}
