//! NCCL's communicator with abort: shared by its users, the watch over the world, and that over the GPU.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaEvent, DriverError};

use super::raw::{RawComm, State};
use super::watch::{Wait, Watch};
use crate::error::{CommError, Result};

/// This rank's access to the other GPUs.
pub(super) struct Link {
    context: Arc<CudaContext>,
    /// `None` once it was aborted. The lock is never held for long, so an abort need not wait.
    comm: Mutex<Option<RawComm>>,
    /// Held during an abort.
    ending: Mutex<()>,
    pub(super) watch: Watch,
}

impl Link {
    pub(super) fn new(context: Arc<CudaContext>, comm: RawComm, watch: Watch) -> Arc<Self> {
        let link = Arc::new(Self { context, comm: Mutex::new(Some(comm)), ending: Mutex::default(), watch });
        let weak = Arc::downgrade(&link);
        link.watch.on_break(move || {
            let weak = weak.clone();
            // An abort waits for the GPU, and the thread that brings the news must tell others.
            let _ = std::thread::Builder::new().name("phalanx-nccl-abort".into()).spawn(move || {
                if let Some(link) = Weak::upgrade(&weak) {
                    link.abort();
                }
            });
        });
        link
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Returns the communicator, if it was not aborted.
    pub(super) fn comm(&self) -> MutexGuard<'_, Option<RawComm>> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts: work on the GPU ends with unspecified buffers, and nothing can be issued any more. When this returns, that holds
    /// even if another thread aborted: NCCL gives nothing to the stream any more.
    pub(super) fn abort(&self) {
        let _ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = self.comm().take();
        if let Some(comm) = comm {
            // NCCL finds the GPU by itself if this fails.
            let _ = self.context.bind_to_thread();
            comm.abort();
        }
    }

    /// Returns the error of a local failure; the communicator is aborted.
    pub(super) fn broken(&self, operation: &'static str, problem: String) -> CommError {
        // The world breaks before the GPU goes on, so that its results are not used.
        let error = self.watch.fail(operation, problem);
        self.abort();
        error
    }

    pub(super) fn driver(&self, operation: &'static str, error: DriverError) -> CommError {
        self.broken(operation, error.to_string())
    }

    /// Returns the error of an aborted communicator.
    pub(super) fn gone(&self, operation: &'static str) -> CommError {
        self.broken(operation, "it was given up after an earlier failure".to_owned())
    }

    /// Returns NCCL's state; an error if it failed or was aborted.
    pub(super) fn state(&self, operation: &'static str) -> Result<State> {
        let state = self.comm().as_ref().map(RawComm::state);
        match state {
            Some(Ok(state)) => Ok(state),
            Some(Err(problem)) => Err(self.broken(operation, problem)),
            None => Err(self.gone(operation)),
        }
    }

    /// Waits on the host until NCCL has submitted its work.
    pub(super) fn settle(&self, operation: &'static str) -> Result<()> {
        let mut wait = self.watch.wait(operation);
        while self.state(operation)? == State::Busy {
            wait.rest().inspect_err(|_| self.abort())?;
        }
        Ok(())
    }

    /// True if the GPU has reached an event; an error if it will not, or if preceding work was aborted.
    pub(super) fn has_reached(&self, event: &CudaEvent, operation: &'static str) -> Result<bool> {
        let look = || {
            self.context.bind_to_thread()?;
            event.try_is_complete()
        };
        let reached = look().map_err(|error| self.driver(operation, error))?;
        // Aborted work ends, too: so this comes after the look.
        self.state(operation)?;
        Ok(reached)
    }

    /// Waits on the host until the GPU has reached an event, resting between looks as `wait` does.
    pub(super) fn finish(
        &self,
        event: &CudaEvent,
        operation: &'static str,
        mut wait: Wait<'_>,
    ) -> Result<()> {
        while !self.has_reached(event, operation)? {
            wait.rest().inspect_err(|_| self.abort())?;
        }
        Ok(())
    }
}
