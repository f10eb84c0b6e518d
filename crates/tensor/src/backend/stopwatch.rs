//! When a device came to what it was given.

use crate::Result;

/// Moments that a device notes when it comes to them, so that the host measures without waiting.
pub trait Stopwatch: std::fmt::Debug + Send {
    /// Notes when the device's codecs have done what they were given until now.
    ///
    /// # Errors
    /// The back end's.
    fn note(&mut self) -> Result<()>;

    /// Notes when what was to be computed until now is done.
    ///
    /// # Errors
    /// The back end's.
    fn note_computing(&mut self) -> Result<()>;

    /// Seconds from the first moment to each, in the order in which they were noted; nothing as long as the device has not come to all,
    /// unless this is to wait for it.
    ///
    /// # Errors
    /// The back end's, also of what was given before.
    fn seconds(&self, wait: bool) -> Result<Option<Vec<f64>>>;
}
