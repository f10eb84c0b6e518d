//! Handles of operations on the communication thread or on a GPU.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError, bounded};

use crate::engine::DeviceOperation;
use crate::error::{CommError, Result};
use crate::simulated::Clock;
use crate::stats::Counters;

/// An operation under way. [`Handle::wait`] returns its result. Dropping the handle does not stop the operation.
///
/// If its buffers are in GPU memory, nothing here waits for the GPU: see [`Handle::wait`].
pub struct Handle<R> {
    state: State<R>,
    counters: Arc<Counters>,
}

enum State<R> {
    /// The communication thread sends the result.
    Coming(Receiver<Result<R>>, SimulatedTimes),
    /// The GPU uses the buffers until it is done.
    OnDevice(OnDevice<R>),
}

struct OnDevice<R> {
    /// Behind a lock like results of the communication thread, so that handles may be shared. `None` once they were returned.
    buffers: Mutex<Option<R>>,
    operation: Box<dyn DeviceOperation>,
}

impl<R> Drop for OnDevice<R> {
    /// Memory is freed in the order of the computing stream, so the operation must precede that first.
    fn drop(&mut self) {
        if self.buffers.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            // A dropped handle ignores errors.
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
    pub(crate) fn new(
        (result, times): (Receiver<Result<R>>, SimulatedTimes),
        counters: Arc<Counters>,
    ) -> Self {
        Self { state: State::Coming(result, times), counters }
    }

    /// A handle of an operation that was issued to a GPU, with its buffers.
    pub(crate) fn on_device(
        buffers: R,
        operation: Box<dyn DeviceOperation>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { state: State::OnDevice(OnDevice { buffers: Mutex::new(Some(buffers)), operation }), counters }
    }

    /// A handle of an operation that could not begin.
    pub(crate) fn failed(error: CommError, counters: Arc<Counters>) -> Self {
        Self::of(Err(error), counters)
    }

    /// A handle of an operation that is over.
    pub(crate) fn of(result: Result<R>, counters: Arc<Counters>) -> Self {
        let (sender, receiver) = bounded(1);
        // The channel has room, and the receiver exists.
        let _ = sender.send(result);
        Self::new((receiver, SimulatedTimes::default()), counters)
    }

    /// True if the operation has finished or failed. For buffers in GPU memory: true if the GPU is done with it, so that the memory
    /// can be reused without waiting.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Coming(result, times) => !result.is_empty() && times.is_over(),
            State::OnDevice(under_way) => under_way.operation.is_done(),
        }
    }

    /// Waits until the operation has finished. This time counts as exposed.
    ///
    /// If the buffers are in GPU memory, their computing stream waits instead, and this returns at once. Work given to the stream
    /// from now on begins when the operation is over. A later failure shows in the next operation and in
    /// [`Communicator::check`](crate::Communicator::check); until then results may be invalid.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> Result<R> {
        let result = match self.state {
            State::OnDevice(mut under_way) => {
                under_way.operation.hand_over()?;
                let buffers = under_way.buffers.get_mut().unwrap_or_else(PoisonError::into_inner);
                return buffers.take().ok_or(CommError::Closed);
            }
            State::Coming(result, SimulatedTimes(Some(times))) => {
                let clock = self.counters.clock();
                let start = clock.now();
                let received = clock.paused(|| result.recv());
                times.catch_up();
                self.counters.exposed(clock.now().saturating_sub(start));
                return received.unwrap_or(Err(CommError::Closed));
            }
            State::Coming(result, SimulatedTimes(None)) => result,
        };
        match result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Disconnected) => Err(CommError::Closed),
            Err(TryRecvError::Empty) => {
                let start = Instant::now();
                let waiting =
                    tracing::trace_span!(target: "phalanx_trace::waiting", "wait for communication");
                let received = waiting.in_scope(|| result.recv());
                self.counters.exposed(start.elapsed());
                received.unwrap_or(Err(CommError::Closed))
            }
        }
    }
}

/// The times of an operation by simulated clocks: its issue, its end, and its CPU time. Empty with wall clocks.
#[derive(Clone, Default)]
pub(crate) struct SimulatedTimes(Option<Arc<Times>>);

struct Times {
    clock: Clock,
    issued: u64,
    over: AtomicU64,
    worked: AtomicU64,
}

impl SimulatedTimes {
    /// Starts the record of an operation that is issued now.
    pub(crate) fn begin(clock: Clock) -> Self {
        let times = || {
            let (over, worked) = (AtomicU64::new(u64::MAX), AtomicU64::default());
            Arc::new(Times { clock, issued: clock.nanos(), over, worked })
        };
        Self((clock == Clock::Cpu).then(times))
    }

    /// Runs the operation on the communication thread, not before its time of issue.
    pub(crate) fn run<R>(&self, run: impl FnOnce() -> R) -> R {
        let Some(times) = &self.0 else { return run() };
        times.clock.catch_up(times.issued);
        let before = times.clock.worked();
        let result = run();
        times.worked.store(times.clock.worked() - before, Ordering::Relaxed);
        times.over.store(times.clock.nanos(), Ordering::Release);
        result
    }

    /// True if the operation is over by the calling thread's clock.
    fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|times| times.over.load(Ordering::Acquire) <= times.clock.nanos())
    }
}

impl Times {
    /// Sets the clock of the thread that has waited. A rank has one core, so this thread has not computed while the operation did.
    fn catch_up(&self) {
        let shared = self.clock.nanos() + self.worked.load(Ordering::Relaxed);
        let over = self.over.load(Ordering::Acquire);
        // The operation never ran if the communicator was closed.
        self.clock.catch_up(if over == u64::MAX { shared } else { shared.max(over) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlatBuffer;

    #[test]
    fn handles_go_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Handle<Box<dyn FlatBuffer>>>();
    }
}
