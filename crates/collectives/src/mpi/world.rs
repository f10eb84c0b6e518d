//! State of a rank in MPI's world.

use std::sync::{Arc, OnceLock, Weak};

use super::settings::Settings;
use super::universe::Universe;
use crate::error::{CommError, Result};
use crate::recorder::Recorder;

/// State that all communicators of a rank share.
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) recorder: Recorder,
    /// The rank of the first known failed operation, and its error.
    pub(super) failure: OnceLock<(usize, String)>,
    /// For [`crate::Communicator::abort`]. It must not keep MPI from ending.
    pub(super) universe: Weak<Universe>,
}

impl World {
    pub(super) fn new(settings: Settings, universe: &Arc<Universe>) -> Self {
        let (recorder, failure) = (Recorder::default(), OnceLock::new());
        Self { settings, recorder, failure, universe: Arc::downgrade(universe) }
    }

    /// Returns an error if an operation has failed.
    pub(super) fn check_failure(&self) -> Result<()> {
        match self.failure.get() {
            Some((rank, reason)) => Err(CommError::Aborted { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }
}
