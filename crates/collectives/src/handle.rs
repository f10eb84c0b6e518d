//! Waiting for an operation that runs on the communication thread, or on a GPU.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError, bounded};

use crate::engine::DeviceOperation;
use crate::error::{CommError, Result};
use crate::stats::Counters;

/// An operation under way; [`Handle::wait`] gives its result. Dropping it does not stop the operation.
///
/// If its buffers lie in the memory of a GPU, nothing here waits for the GPU: see [`Handle::wait`].
pub struct Handle<R> {
    state: State<R>,
    counters: Arc<Counters>,
}

enum State<R> {
    /// The communication thread sends the result.
    Coming(Receiver<Result<R>>),
    /// The buffers are the GPU's until it is done.
    OnDevice(OnDevice<R>),
}

struct OnDevice<R> {
    buffers: Option<R>,
    operation: Box<dyn DeviceOperation>,
}

impl<R> Drop for OnDevice<R> {
    /// Memory is freed in the order of the stream that computes, so this must be behind the operation first.
    fn drop(&mut self) {
        if self.buffers.is_some() {
            // Whoever does not wait does not want to know.
            let _ = self.operation.hand_over();
        }
    }
}

impl<R> std::fmt::Debug for Handle<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl<R> Handle<R> {
    pub(crate) fn new(result: Receiver<Result<R>>, counters: Arc<Counters>) -> Self {
        Self { state: State::Coming(result), counters }
    }

    /// A handle of an operation that was issued to a GPU, with its buffers.
    pub(crate) fn on_device(
        buffers: R,
        operation: Box<dyn DeviceOperation>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { state: State::OnDevice(OnDevice { buffers: Some(buffers), operation }), counters }
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
        Self::new(receiver, counters)
    }

    /// Whether the operation has finished, well or not. If its buffers lie in the memory of a GPU: whether the GPU is done with
    /// it, so that the memory can be given to something else without waiting.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Coming(result) => !result.is_empty(),
            State::OnDevice(under_way) => under_way.operation.is_done(),
        }
    }

    /// Waits until the operation has finished. The time spent here counts as exposed.
    ///
    /// If the buffers lie in the memory of a GPU, the stream that computes on them waits instead, and this returns at once: what
    /// the stream is given from now on begins when the operation is over. A failure that comes after this is told by the next
    /// operation, and by [`Communicator::check`](crate::Communicator::check); until then results may be garbage.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<R> {
        let result = match self.state {
            State::OnDevice(mut under_way) => {
                under_way.operation.hand_over()?;
                return under_way.buffers.take().ok_or(CommError::Closed);
            }
            State::Coming(result) => result,
        };
        match result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Disconnected) => Err(CommError::Closed),
            Err(TryRecvError::Empty) => {
                let start = Instant::now();
                let received = result.recv();
                self.counters.exposed(start.elapsed());
                received.unwrap_or(Err(CommError::Closed))
            }
        }
    }
}
