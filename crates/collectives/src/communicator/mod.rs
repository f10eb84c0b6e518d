//! The communicator, which programs call.

mod buffers;
mod device;
mod exchange;
mod into;
mod messages;
mod movement;
mod reductions;
mod span;
mod split;

pub use buffers::SharedBuffer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, bounded, unbounded};
use tracing::Span;

use crate::algorithms::cost::CostModel;
use crate::buffer::{FlatBuffer, SliceMut};
use crate::control::Control;
use crate::dtype::DType;
use crate::engine::{DeviceQueue, Engine, ExitActions};
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::handle::{Handle, SimulatedTimes};
use crate::mailbox::Mailbox;
use crate::operation::{Algorithm, Scope, Tag};
use crate::recorder::OperationRecord;
use crate::simulated::Clock;
use crate::stats::{CommStats, Counters};

/// An operation for the communication thread.
type Job = Box<dyn FnOnce(&mut dyn Engine) + Send>;

/// The queue of the communication thread. Only its holder may issue the next operation.
struct Queue {
    /// `None` once the communicator is shut down.
    jobs: Option<Sender<Job>>,
}

/// The choice of algorithms of a communicator.
#[derive(Debug, Clone, Copy)]
enum AlgorithmChoice {
    /// This algorithm where it exists, otherwise the best one.
    Prefer(Algorithm),
    /// This algorithm only.
    Only(Algorithm),
}

impl AlgorithmChoice {
    /// Returns the tag of an operation of all ranks with the chosen algorithm.
    fn apply(self, engine: &dyn Engine, scope: Scope, tag: Tag) -> Tag {
        match (scope, self) {
            (Scope::World, Self::Only(algorithm)) => tag.with_algorithm(algorithm),
            (Scope::World, Self::Prefer(algorithm)) if engine.offers(tag.kind, algorithm) => {
                tag.with_algorithm(algorithm)
            }
            _ => tag,
        }
    }
}

/// A rank's connection to all others of its world. Clones share it. It may be used from several threads, but all ranks must issue
/// the same operations in the same order.
///
/// Operations run in the order of their issue. Asynchronous ones run on a communication thread; a blocking one waits for those
/// before it and runs on its caller's thread. For buffers in GPU memory ([`FlatBuffer::device`]) both kinds return when the
/// operation is on the GPU's queue. The communication thread then checks that all ranks have issued the same operation, and breaks
/// the world if not.
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
    choice: AlgorithmChoice,
    /// True if asynchronous operations run on the caller's thread.
    blocking: bool,
    /// The label of its operations in the flight recorder.
    label: Option<Arc<str>>,
}

/// The position of this rank in its world, and the hosts of all ranks.
struct RankPosition {
    rank: usize,
    world_size: usize,
    /// The number among the ranks of its host.
    local_rank: usize,
    /// The host of each rank.
    hosts: Vec<usize>,
}

struct Inner {
    position: RankPosition,
    counters: Arc<Counters>,
    queue: Mutex<Queue>,
    /// Jobs that are queued or running. Without any, a caller may run its operation itself.
    pending: Arc<AtomicUsize>,
    /// The jobs among them that move bytes of the host. Operations on a GPU come after them.
    moving: Arc<AtomicUsize>,
    /// The queue of operations on GPU buffers; `None` without one, or once the communicator is shut down.
    device: Mutex<Option<Arc<dyn DeviceQueue>>>,
    /// The engine that moves the bytes.
    by: &'static str,
    failure: Option<Arc<Failure>>,
    /// `None` once the communicator is shut down.
    engine: Arc<Mutex<Option<Box<dyn Engine>>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// The actions that leave the world and abort it. A part of a world has nothing to leave.
    ending: ExitActions,
    /// The mailbox, or the name of the library that has none. `None` once the communicator is shut down.
    mailbox: Mutex<Option<std::result::Result<Mailbox, &'static str>>>,
    /// The control plane of the world, or the name of the library that has none.
    control: std::result::Result<Control, &'static str>,
    /// The number of communicators made of this one.
    splits: AtomicU32,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}

/// Runs a function that may call a caller's code, whose panic must not destroy the engine.
fn guarded<R>(run: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(CommError::Buffer("panicked while it was open".into())))
}

/// Begins an operation, runs it and ends it.
fn perform<R>(
    engine: &mut dyn Engine,
    counters: &Counters,
    (scope, tag, choice): (Scope, Tag, AlgorithmChoice),
    label: Option<&Arc<str>>,
    span: &Span,
    run: impl FnOnce(&mut dyn Engine) -> Result<R>,
) -> Result<R> {
    let _inside = span.enter();
    let (start, (sent, received)) = (counters.begin(), engine.traffic());
    let begun = engine.begin(scope, choice.apply(engine, scope, tag));
    // An operation that is not available was never begun.
    if let Err(error @ CommError::Argument { .. }) = begun {
        return Err(error);
    }
    if let Some(label) = label {
        engine.label(label);
    }
    span::begun(span, engine, scope);
    let result = begun.and_then(|()| guarded(|| run(engine)));
    engine.end(result.as_ref().err());
    let (sent_now, received_now) = engine.traffic();
    let (sent, received) = (sent_now - sent, received_now - received);
    counters.operation(start, sent, received);
    span::moved(span, sent, received);
    result
}

/// Opens a buffer, and checks its description.
fn open<B: FlatBuffer + ?Sized>(
    buffer: &mut B,
    (dtype, len): (DType, usize),
    run: &mut dyn FnMut(SliceMut<'_>) -> Result<()>,
) -> Result<()> {
    let mut result = Err(CommError::Buffer("was not opened".into()));
    buffer
        .with_slice_mut(&mut |slice| {
            if (slice.dtype(), slice.len()) != (dtype, len) {
                let (is, holds) = (slice.dtype().name(), slice.len());
                let problem = format!("says that it holds {len} {}, but opens as {holds} {is}", dtype.name());
                result = Err(CommError::Buffer(problem));
                return;
            }
            result = run(slice);
        })
        .map_err(|error| CommError::Buffer(error.to_string()))?;
    result
}

impl Communicator {
    pub(crate) fn start(
        engine: Box<dyn Engine>,
        local_rank: usize,
        prefer: Algorithm,
        ending: ExitActions,
    ) -> std::io::Result<Self> {
        let (rank, world_size, hosts) = (engine.rank(), engine.world_size(), engine.hosts());
        let (mailbox, control) = (engine.mailbox(), engine.control());
        let (device, by, failure) = (engine.device(), engine.name(), engine.failure());
        let counters = Counters::by(engine.clock());
        let (queue, jobs) = unbounded::<Job>();
        let (engine, pending) = (Arc::new(Mutex::new(Some(engine))), Arc::new(AtomicUsize::new(0)));
        let (theirs, left) = (engine.clone(), pending.clone());
        let thread = std::thread::Builder::new().name(format!("phalanx-comm-{rank}")).spawn(move || {
            for job in jobs {
                if let Some(engine) = theirs.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    job(engine.as_mut());
                }
                left.fetch_sub(1, Ordering::Release);
            }
        })?;
        let inner = Inner {
            position: RankPosition { rank, world_size, local_rank, hosts },
            counters: Arc::new(counters),
            queue: Mutex::new(Queue { jobs: Some(queue) }),
            pending,
            moving: Arc::default(),
            device: Mutex::new(device),
            by,
            failure,
            engine,
            thread: Mutex::new(Some(thread)),
            ending,
            mailbox: Mutex::new(Some(mailbox)),
            control,
            splits: AtomicU32::new(0),
        };
        Ok(Self {
            inner: Arc::new(inner),
            choice: AlgorithmChoice::Prefer(prefer),
            blocking: false,
            label: None,
        })
    }

    /// Returns this rank, from 0.
    pub fn rank(&self) -> usize {
        self.inner.position.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.inner.position.world_size
    }

    /// Returns this rank among those of its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.inner.position.local_rank
    }

    /// Returns the host of each rank, numbered from 0 in the order of ranks.
    pub fn hosts(&self) -> &[usize] {
        &self.inner.position.hosts
    }

    /// Returns the clock that times this rank's operations: wall time, unless links are simulated.
    pub fn clock(&self) -> Clock {
        self.inner.counters.clock()
    }

    /// Returns the costs of communication so far.
    pub fn stats(&self) -> CommStats {
        self.inner.counters.read()
    }

    /// Returns the last operations of this rank on all its communicators, the oldest first: the flight recorder.
    pub fn recent(&self) -> Vec<OperationRecord> {
        let engine = self.inner.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().map_or_else(Vec::new, |engine| engine.recent())
    }

    /// Returns this communicator with a preferred algorithm. Operations without it use the best one. Communicators split off it
    /// have the same preference. [`Algorithm::Auto`] is none. All ranks must prefer the same.
    #[must_use]
    pub fn preferring(&self, algorithm: Algorithm) -> Self {
        Self { choice: AlgorithmChoice::Prefer(algorithm), ..self.clone() }
    }

    /// Returns this communicator with a required algorithm.
    ///
    /// Operations without this algorithm, or whose world does not allow it, return [`CommError::Argument`] with the available ones.
    #[must_use]
    pub fn using(&self, algorithm: Algorithm) -> Self {
        Self { choice: AlgorithmChoice::Only(algorithm), ..self.clone() }
    }

    /// Returns this communicator with asynchronous operations that run at once on the calling thread. They are over when their
    /// handle is returned.
    ///
    /// With shared memory, an operation is work of the CPU. If all cores compute already, a communication thread takes a core from
    /// a computation at times that the system chooses; then this is faster.
    #[must_use]
    pub fn blocking(&self) -> Self {
        Self { blocking: true, ..self.clone() }
    }

    /// Returns this communicator with a label for its operations in the flight recorder, such as the bucket of gradients.
    #[must_use]
    pub fn about(&self, label: &Arc<str>) -> Self {
        Self { label: Some(label.clone()), ..self.clone() }
    }

    /// True if asynchronous operations run on the calling thread: see [`Communicator::blocking`].
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// Returns the world's control plane: notices between ranks, and the agreement to stop after the same step.
    ///
    /// # Errors
    /// [`CommError::NotOffered`] by a communicator of MPI.
    pub fn control(&self) -> Result<Control> {
        let operation = "a control plane";
        self.inner.control.clone().map_err(|by| CommError::NotOffered { operation, by })
    }

    /// Returns the measured costs of this world's links, equal on every rank. The first call measures them; all ranks make it at
    /// the same place.
    ///
    /// # Errors
    /// The error of the world.
    pub fn costs(&self) -> Result<CostModel> {
        self.inline(|engine, _| engine.costs())
    }

    /// Queues an operation and returns at once.
    fn issue<R: Send + 'static>(
        &self,
        scope: Scope,
        tag: Tag,
        run: impl FnOnce(&mut dyn Engine) -> Result<R> + Send + 'static,
    ) -> Handle<R> {
        if self.blocking {
            return Handle::of(self.run(scope, tag, run), self.inner.counters.clone());
        }
        let (sender, receiver) = bounded(1);
        let (counters, choice, label) = (self.inner.counters.clone(), self.choice, self.label.clone());
        let (answer, moving) = (sender.clone(), self.inner.moving.clone());
        let span = span::operation(tag);
        let times = SimulatedTimes::begin(counters.clock());
        let theirs = times.clone();
        let job: Job = Box::new(move |engine| {
            let result = theirs.run(|| {
                engine.in_background(true);
                let result = perform(engine, &counters, (scope, tag, choice), label.as_ref(), &span, run);
                engine.in_background(false);
                result
            });
            // Closed before the end can be observed.
            drop(span);
            moving.fetch_sub(1, Ordering::Release);
            // A dropped handle needs no result.
            let _ = answer.send(result);
        });
        let queue = self.queue();
        self.inner.moving.fetch_add(1, Ordering::Relaxed);
        if queue.jobs.as_ref().is_none_or(|jobs| self.queue_job(jobs, job).is_err()) {
            self.inner.moving.fetch_sub(1, Ordering::Relaxed);
            let _ = sender.send(Err(CommError::Closed));
        }
        Handle::new((receiver, times), self.inner.counters.clone())
    }

    /// Queues a job for the communication thread.
    fn queue_job(&self, jobs: &Sender<Job>, job: Job) -> Result<()> {
        self.inner.pending.fetch_add(1, Ordering::Relaxed);
        jobs.send(job).map_err(|_| {
            self.inner.pending.fetch_sub(1, Ordering::Relaxed);
            CommError::Closed
        })
    }

    /// Waits until the communication thread has finished its jobs.
    fn fence(&self, jobs: &Sender<Job>) -> Result<()> {
        let (reached, fence) = bounded::<()>(1);
        let job: Job = Box::new(move |_| {
            let _ = reached.send(());
        });
        self.queue_job(jobs, job)?;
        self.inner.counters.clock().paused(|| fence.recv()).map_err(|_| CommError::Closed)
    }

    /// Runs a function with the engine on this thread, after the operations issued before. This saves copies and, with an empty
    /// queue, two switches of threads.
    fn inline<R>(&self, run: impl FnOnce(&mut dyn Engine, &Counters) -> Result<R>) -> Result<R> {
        let clock = self.inner.counters.clock();
        let start = clock.now();
        // Holding the queue keeps later operations of other threads behind this one.
        let queue = self.queue();
        let Some(jobs) = &queue.jobs else { return Err(CommError::Closed) };
        if self.inner.pending.load(Ordering::Acquire) > 0 {
            let _waiting = span::waiting().entered();
            self.fence(jobs)?;
        }
        let mut engine = self.inner.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = engine.as_mut().ok_or(CommError::Closed)?;
        let result = run(engine.as_mut(), &self.inner.counters);
        self.inner.counters.exposed(clock.now().saturating_sub(start));
        result
    }

    /// Runs an operation on this thread.
    fn run<R>(&self, scope: Scope, tag: Tag, run: impl FnOnce(&mut dyn Engine) -> Result<R>) -> Result<R> {
        let span = span::operation(tag);
        let label = self.label.as_ref();
        self.inline(|engine, counters| {
            perform(engine, counters, (scope, tag, self.choice), label, &span, run)
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_root(&self, operation: &'static str, root: usize) -> Result<()> {
        if root < self.world_size() {
            return Ok(());
        }
        let problem = format!("rank {root} does not exist in a world of {}", self.world_size());
        Err(CommError::Argument { operation, problem })
    }

    /// Checks this rank's failure flag of the world. Does not wait. Call this before the host uses GPU results that
    /// depend on operations: if the world breaks, operations on a GPU end early.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken.
    pub fn check(&self) -> Result<()> {
        match &self.inner.failure {
            Some(failure) if failure.is_set() => {
                let cause = failure.get().unwrap_or(Cause::Lost(self.rank()));
                Err(cause.error("a check".to_owned(), self.stats().operations))
            }
            _ => Ok(()),
        }
    }

    /// Tells all ranks that this one gives up. Their pending and later operations return [`CommError::Aborted`] with the reason.
    /// The first abort or loss of a world counts.
    pub fn abort(&self, reason: &str) {
        (self.inner.ending.abort)(reason);
    }

    /// Finishes queued operations and leaves in good order. Later operations return [`CommError::Closed`]. Dropping the last clone
    /// does the same.
    pub fn shutdown(&self) {
        self.inner.shutdown();
    }
}

impl Inner {
    fn shutdown(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).jobs.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        drop(self.mailbox.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.device.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Closes the links after queued messages were written.
        drop(self.engine.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(leave) = &self.ending.leave {
            leave();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}
