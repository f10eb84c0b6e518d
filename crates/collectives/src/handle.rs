//! Waiting for an operation that runs on the communication thread.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::error::{CommError, Result};
use crate::stats::Counters;

/// An operation under way; [`Handle::wait`] gives its result. Dropping it does not stop the operation.
#[derive(Debug)]
pub struct Handle<R> {
    result: Receiver<Result<R>>,
    early: Option<Result<R>>,
    counters: Arc<Counters>,
}

impl<R> Handle<R> {
    pub(crate) fn new(result: Receiver<Result<R>>, counters: Arc<Counters>) -> Self {
        Self { result, early: None, counters }
    }

    /// Whether the operation has finished, well or not.
    pub fn is_done(&mut self) -> bool {
        if self.early.is_none() {
            self.early = match self.result.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(CommError::Closed)),
            };
        }
        self.early.is_some()
    }

    /// Waits until the operation has finished. The time spent here counts as exposed.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(mut self) -> Result<R> {
        if self.is_done() {
            return self.early.take().unwrap_or(Err(CommError::Closed));
        }
        let start = Instant::now();
        let result = self.result.recv().unwrap_or(Err(CommError::Closed));
        self.counters.exposed(start.elapsed());
        result
    }
}
