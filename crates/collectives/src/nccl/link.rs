//! NCCL's communicator as all see it who may have to give it up: its users, the watch over the world, and that over the GPU.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaEvent, DriverError};

use super::raw::{RawComm, State};
use super::watch::{Wait, Watch};
use crate::error::{CommError, Result};

/// This rank's way to the other GPUs.
pub(super) struct Link {
    context: Arc<CudaContext>,
    /// `None` once it was given up. The lock is never held for long, so that giving up need not wait.
    comm: Mutex<Option<RawComm>>,
    /// Held while it is being given up.
    ending: Mutex<()>,
    pub(super) watch: Watch,
}

impl Link {
    pub(super) fn new(context: Arc<CudaContext>, comm: RawComm, watch: Watch) -> Arc<Self> {
        let link = Arc::new(Self { context, comm: Mutex::new(Some(comm)), ending: Mutex::default(), watch });
        let weak = Arc::downgrade(&link);
        link.watch.on_break(move || {
            let weak = weak.clone();
            // Giving up waits for the GPU to let go, and whoever brings the news has others to tell.
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

    /// The communicator, if it was not given up.
    pub(super) fn comm(&self) -> MutexGuard<'_, Option<RawComm>> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up: what is on the GPU ends, with whatever is in the buffers, and nothing can be issued any more. When this returns,
    /// that is so, whoever did it: NCCL hands nothing to the stream any more.
    pub(super) fn abort(&self) {
        let _ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = self.comm().take();
        if let Some(comm) = comm {
            // NCCL finds the GPU by itself if this fails.
            let _ = self.context.bind_to_thread();
            comm.abort();
        }
    }

    /// The error of something that failed here; the communicator is given up.
    pub(super) fn broken(&self, operation: &'static str, problem: String) -> CommError {
        // The world is broken before the GPU goes on, so that nobody believes what it computes then.
        let error = self.watch.fail(operation, problem);
        self.abort();
        error
    }

    pub(super) fn driver(&self, operation: &'static str, error: DriverError) -> CommError {
        self.broken(operation, error.to_string())
    }

    /// The error of a communicator that was given up.
    pub(super) fn gone(&self, operation: &'static str) -> CommError {
        self.broken(operation, "it was given up after an earlier failure".to_owned())
    }

    /// NCCL's state; an error if it failed or was given up.
    pub(super) fn state(&self, operation: &'static str) -> Result<State> {
        let state = self.comm().as_ref().map(RawComm::state);
        match state {
            Some(Ok(state)) => Ok(state),
            Some(Err(problem)) => Err(self.broken(operation, problem)),
            None => Err(self.gone(operation)),
        }
    }

    /// Waits on the host until NCCL has handed over what it was asked for.
    pub(super) fn settle(&self, operation: &'static str) -> Result<()> {
        let mut wait = self.watch.wait(operation);
        while self.state(operation)? == State::Busy {
            wait.rest().inspect_err(|_| self.abort())?;
        }
        Ok(())
    }

    /// Whether the GPU has come to an event; an error if it will not, or what came before it was given up.
    pub(super) fn has_reached(&self, event: &CudaEvent, operation: &'static str) -> Result<bool> {
        let look = || {
            self.context.bind_to_thread()?;
            event.try_is_complete()
        };
        let reached = look().map_err(|error| self.driver(operation, error))?;
        // Work that was given up ends, too: so this comes after the look.
        self.state(operation)?;
        Ok(reached)
    }

    /// Waits on the host until the GPU has come to an event, resting between looks as `wait` does.
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
