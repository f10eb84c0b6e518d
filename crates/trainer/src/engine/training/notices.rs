//! Notices of a training to its user, such as captions that are cut off.

use std::sync::{Mutex, PoisonError};

/// The notices since the last report.
#[derive(Debug, Default)]
pub(in crate::engine) struct Notices(Mutex<Vec<String>>);

impl Notices {
    /// Adds a notice.
    pub(super) fn add(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Takes the notices out.
    pub(in crate::engine) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
