//! Waiting for an operation that runs on the communication thread.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError, bounded};

use crate::error::{CommError, Result};
use crate::stats::Counters;

/// An operation under way; [`Handle::wait`] gives its result. Dropping it does not stop the operation.
pub struct Handle<R> {
    result: Receiver<Result<R>>,
    counters: Arc<Counters>,
}

impl<R> std::fmt::Debug for Handle<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl<R> Handle<R> {
    pub(crate) fn new(result: Receiver<Result<R>>, counters: Arc<Counters>) -> Self {
        Self { result, counters }
    }

    /// A handle of something that could not begin.
    pub(crate) fn failed(error: CommError, counters: Arc<Counters>) -> Self {
        Self::of(Err(error), counters)
    }

    /// A handle of what is over, well or not.
    pub(crate) fn of(result: Result<R>, counters: Arc<Counters>) -> Self {
        let (sender, receiver) = bounded(1);
        // There is room, and the receiver is here.
        let _ = sender.send(result);
        Self { result: receiver, counters }
    }

    /// Whether the operation has finished, well or not.
    pub fn is_done(&self) -> bool {
        !self.result.is_empty()
    }

    /// Waits until the operation has finished. The time spent here counts as exposed.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<R> {
        let result = match self.result.try_recv() {
            Ok(result) => return result,
            Err(TryRecvError::Disconnected) => return Err(CommError::Closed),
            Err(TryRecvError::Empty) => {
                let start = Instant::now();
                let result = self.result.recv();
                self.counters.exposed(start.elapsed());
                result
            }
        };
        result.unwrap_or(Err(CommError::Closed))
    }
}
