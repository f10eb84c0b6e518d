//! NCCL's communicator with its stream: hands over operations, and waits so that nobody's death makes it wait for ever.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use super::bootstrap::OPENING;
use super::calls::{Call, Member};
use super::raw::{ID, RawComm, State};
use super::watch::Watch;
use crate::error::{CommError, Result};

/// This rank's way to the other GPUs.
pub(super) struct Channel {
    pub(super) member: Member,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// `None` once it was given up. The lock is never held for long, so that giving up need not wait.
    comm: Mutex<Option<RawComm>>,
    /// Held by whoever hands an operation over, until NCCL is ready for the next.
    turn: Mutex<()>,
    watch: Watch,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Member { rank, world_size } = self.member;
        write!(f, "Channel(rank {rank} of {world_size}, GPU {})", self.context.ordinal())
    }
}

impl Channel {
    /// Opens a channel between all ranks that know `id`. Returns when all have come.
    pub(super) fn open(
        context: Arc<CudaContext>,
        id: &[u8; ID],
        member: Member,
        watch: Watch,
    ) -> Result<Arc<Self>> {
        let begin = || {
            let stream = context.new_stream().map_err(|error| error.to_string())?;
            Ok((RawComm::open(member, id)?, stream))
        };
        let (comm, stream) = begin().map_err(|problem| watch.fail(OPENING, problem))?;
        let channel = Arc::new(Self {
            member,
            context,
            stream,
            comm: Mutex::new(Some(comm)),
            turn: Mutex::default(),
            watch,
        });
        channel.settle(OPENING)?;
        let weak = Arc::downgrade(&channel);
        channel.watch.on_break(move || {
            let weak = weak.clone();
            // Giving up waits for the GPU to let go, and whoever brings the news has others to tell.
            let _ = std::thread::Builder::new().name("phalanx-nccl-abort".into()).spawn(move || {
                if let Some(channel) = weak.upgrade() {
                    channel.abort();
                }
            });
        });
        Ok(channel)
    }

    /// The stream that operations run on.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    fn comm(&self) -> MutexGuard<'_, Option<RawComm>> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up: what is on the GPU ends, with whatever is in the buffers, and nothing can be issued any more.
    fn abort(&self) {
        let comm = self.comm().take();
        if let Some(comm) = comm {
            // NCCL finds the GPU by itself if this fails.
            let _ = self.context.bind_to_thread();
            comm.abort();
        }
    }

    /// The error of something that failed here; the channel is given up.
    pub(super) fn broken(&self, operation: &'static str, problem: String) -> CommError {
        self.abort();
        self.watch.fail(operation, problem)
    }

    pub(super) fn driver(&self, operation: &'static str, error: DriverError) -> CommError {
        self.broken(operation, error.to_string())
    }

    /// The error of a channel that was given up.
    fn gone(&self, operation: &'static str) -> CommError {
        self.watch.fail(operation, "the channel was given up after an earlier failure".to_owned())
    }

    /// NCCL's state; an error if it failed or was given up.
    fn state(&self, operation: &'static str) -> Result<State> {
        let state = self.comm().as_ref().map(RawComm::state);
        match state {
            Some(Ok(state)) => Ok(state),
            Some(Err(problem)) => Err(self.broken(operation, problem)),
            None => Err(self.gone(operation)),
        }
    }

    /// Waits on the host until NCCL has handed over what it was asked for.
    fn settle(&self, operation: &'static str) -> Result<()> {
        let mut wait = self.watch.wait(operation);
        while self.state(operation)? == State::Busy {
            wait.rest().inspect_err(|_| self.abort())?;
        }
        Ok(())
    }

    /// Hands over calls as one operation. Returns when they are on the stream; those that move nothing are left out.
    pub(super) fn issue(&self, operation: &'static str, calls: &[Call<'_>]) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.watch.next();
        self.watch.look(operation)?;
        let calls: Vec<_> = calls.iter().filter(|call| !call.is_empty()).collect();
        if calls.is_empty() {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(|error| self.driver(operation, error))?;
        let begun = self.comm().as_ref().map(|comm| comm.enqueue(&calls, &self.stream));
        match begun {
            Some(Ok(())) => self.settle(operation),
            Some(Err(problem)) => Err(self.broken(operation, problem)),
            None => Err(self.gone(operation)),
        }
    }

    /// An event after all that was issued.
    pub(super) fn record(&self, operation: &'static str) -> Result<CudaEvent> {
        self.stream.record_event(None).map_err(|error| self.driver(operation, error))
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

    /// Waits on the host until the GPU has come to an event.
    pub(super) fn finish(&self, event: &CudaEvent, operation: &'static str) -> Result<()> {
        let mut wait = self.watch.wait(operation);
        while !self.has_reached(event, operation)? {
            wait.rest().inspect_err(|_| self.abort())?;
        }
        Ok(())
    }
}

impl Drop for Channel {
    /// Lets the GPU finish what was issued, since other ranks count on it; in a panic nobody knows whether they came.
    fn drop(&mut self) {
        const CLOSING: &str = "closing";
        let healthy = !std::thread::panicking() && self.comm().is_some() && self.watch.look(CLOSING).is_ok();
        let finished = healthy && self.record(CLOSING).and_then(|event| self.finish(&event, CLOSING)).is_ok();
        let comm = self.comm().take();
        match comm {
            Some(comm) if finished => {
                if let Err(problem) = comm.close() {
                    tracing::warn!(problem, "NCCL did not close in good order");
                }
            }
            Some(comm) => comm.abort(),
            None => {}
        }
    }
}
