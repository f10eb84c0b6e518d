//! The communicator: what a rank calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Sender, bounded, unbounded};

use crate::algorithms::chunk;
use crate::buffer::{FlatBuffer, SliceMut};
use crate::dtype::{DType, Element, ReduceOp};
use crate::engine::{Engine, Kind, Scope, Tag};
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::handle::Handle;
use crate::stats::{CommStats, Counters};
use crate::world::Control;

/// One operation, on the communication thread.
type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// What waits for the communication thread. Whoever holds it may issue the next operation.
struct Queue {
    /// `None` once the communicator is shut down.
    jobs: Option<Sender<Job>>,
}

/// A rank's connection to all others of its world. Clones share it; it may be used from several threads, but the
/// ranks must issue the same operations in the same order.
///
/// Operations run in the order of their issue on one communication thread, the blocking ones too, so that a
/// blocking call waits for the asynchronous ones before it.
#[derive(Clone)]
pub struct Communicator(Arc<Inner>);

struct Inner {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    counters: Arc<Counters>,
    queue: Mutex<Queue>,
    /// Jobs that are queued or running; with none, a caller may run its operation itself.
    pending: Arc<AtomicUsize>,
    /// `None` once the communicator is shut down.
    engine: Arc<Mutex<Option<Engine>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    control: Arc<Control>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.0.rank, self.0.world_size)
    }
}

impl Communicator {
    pub(crate) fn start(local_rank: usize, engine: Engine, control: Arc<Control>) -> std::io::Result<Self> {
        let (rank, world_size) = (engine.rank, engine.world_size);
        let (queue, jobs) = unbounded::<Job>();
        let (engine, pending) = (Arc::new(Mutex::new(Some(engine))), Arc::new(AtomicUsize::new(0)));
        let (theirs, left) = (engine.clone(), pending.clone());
        let thread = std::thread::Builder::new().name(format!("phalanx-comm-{rank}")).spawn(move || {
            for job in jobs {
                if let Some(engine) = theirs.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    job(engine);
                }
                left.fetch_sub(1, Ordering::Release);
            }
        })?;
        Ok(Self(Arc::new(Inner {
            rank,
            world_size,
            local_rank,
            counters: Arc::default(),
            queue: Mutex::new(Queue { jobs: Some(queue) }),
            pending,
            engine,
            thread: Mutex::new(Some(thread)),
            control,
        })))
    }

    /// Gives the engine memory that all ranks share. Every rank does so after the same operation.
    #[cfg(target_os = "linux")]
    pub(crate) fn share(&self, board: Option<crate::shared::Board>) {
        if let Some(engine) = self.0.engine.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            engine.board = board;
        }
        self.0.counters.forget();
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.0.world_size
    }

    /// This rank among those of its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.0.local_rank
    }

    /// What communication has cost so far.
    pub fn stats(&self) -> CommStats {
        self.0.counters.read()
    }

    /// Queues an operation of all ranks and returns at once.
    fn issue<R: Send + 'static>(
        &self,
        tag: Tag,
        run: impl FnOnce(&mut Engine) -> Result<R> + Send + 'static,
    ) -> Handle<R> {
        self.issue_in(Scope::World, tag, run)
    }

    /// Queues an operation and returns at once.
    fn issue_in<R: Send + 'static>(
        &self,
        scope: Scope,
        tag: Tag,
        run: impl FnOnce(&mut Engine) -> Result<R> + Send + 'static,
    ) -> Handle<R> {
        let (sender, receiver) = bounded(1);
        let counters = self.0.counters.clone();
        let answer = sender.clone();
        let job: Job = Box::new(move |engine| {
            let (start, sent, received) = (Instant::now(), engine.sent, engine.received);
            let result = engine.begin(scope, tag).and_then(|()| {
                // A caller's buffer may panic when it is opened. That must not take this thread along, which
                // the other operations need.
                catch_unwind(AssertUnwindSafe(|| run(engine)))
                    .unwrap_or_else(|_| Err(CommError::Buffer("panicked while it was open".into())))
            });
            engine.end(&result);
            counters.operation(start.elapsed(), engine.sent - sent, engine.received - received);
            // Nobody may be waiting; then nobody needs the result.
            let _ = answer.send(result);
        });
        let queue = self.queue();
        self.0.pending.fetch_add(1, Ordering::Relaxed);
        if queue.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            self.0.pending.fetch_sub(1, Ordering::Relaxed);
            let _ = sender.send(Err(CommError::Closed));
        }
        Handle::new(receiver, self.0.counters.clone())
    }

    fn check_root(&self, operation: &'static str, root: usize) -> Result<()> {
        if root < self.0.world_size {
            return Ok(());
        }
        let problem = format!("rank {root} does not exist in a world of {}", self.0.world_size);
        Err(CommError::Argument { operation, problem })
    }

    fn check_other(&self, operation: &'static str, other: usize) -> Result<()> {
        self.check_root(operation, other)?;
        if other != self.0.rank {
            return Ok(());
        }
        let problem = format!("rank {other} is this rank");
        Err(CommError::Argument { operation, problem })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on a slice: here and in place if nothing is queued before it, which saves two copies and two
    /// changes of threads; else on a copy on the communication thread. After an error the slice's content is
    /// unspecified.
    fn on_slice<T: Element>(
        &self,
        kind: Kind,
        values: &mut [T],
        run: impl FnOnce(&mut Engine, &mut [T]) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let tag = Tag { kind, dtype: T::DTYPE, count: values.len() as u64 };
        // Holding the queue keeps later operations of other threads behind this one.
        let queue = self.queue();
        if queue.jobs.is_none() {
            return Err(CommError::Closed);
        }
        if self.0.pending.load(Ordering::Acquire) == 0 {
            let mut engine = self.0.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let engine = engine.as_mut().ok_or(CommError::Closed)?;
            let (start, sent, received) = (Instant::now(), engine.sent, engine.received);
            let result = engine.begin(Scope::World, tag).and_then(|()| run(engine, values));
            engine.end(&result);
            let (sent, received) = (engine.sent - sent, engine.received - received);
            self.0.counters.operation(start.elapsed(), sent, received);
            self.0.counters.exposed(start.elapsed());
            return result;
        }
        drop(queue);
        let mut copy = values.to_vec();
        let result = self.issue(tag, move |engine| {
            run(engine, &mut copy)?;
            Ok(copy)
        });
        values.copy_from_slice(&result.wait()?);
        Ok(())
    }

    /// Every rank's buffer becomes the reduction of all.
    ///
    /// # Errors
    /// [`CommError::Unsupported`] for the mean of integers; otherwise that of the world.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], op: ReduceOp) -> Result<()> {
        op.check(T::DTYPE)?;
        self.on_slice(all_reduce_kind(op), values, move |engine, values| engine.all_reduce(values, op))
    }

    /// The same without waiting: the buffer is reduced in place on the communication thread and comes back from
    /// [`Handle::wait`].
    pub fn all_reduce_async<B: FlatBuffer>(&self, mut buffer: B, op: ReduceOp) -> Handle<B> {
        let (dtype, len) = (buffer.dtype(), buffer.len());
        let tag = Tag { kind: all_reduce_kind(op), dtype, count: len as u64 };
        self.issue(tag, move |engine| {
            op.check(dtype)?;
            let mut result = Err(CommError::Buffer("was not opened".into()));
            buffer
                .with_slice_mut(&mut |slice| {
                    if (slice.dtype(), slice.len()) != (dtype, len) {
                        let (is, holds) = (slice.dtype().name(), slice.len());
                        let problem =
                            format!("says that it holds {len} {}, but opens as {holds} {is}", dtype.name());
                        result = Err(CommError::Buffer(problem));
                        return;
                    }
                    result = match slice {
                        SliceMut::F32(values) => engine.all_reduce(values, op),
                        SliceMut::F64(values) => engine.all_reduce(values, op),
                        SliceMut::F16(values) => engine.all_reduce(values, op),
                        SliceMut::BF16(values) => engine.all_reduce(values, op),
                        SliceMut::I32(values) => engine.all_reduce(values, op),
                        SliceMut::I64(values) => engine.all_reduce(values, op),
                        SliceMut::U8(values) => engine.all_reduce(values, op),
                    }
                })
                .map_err(|error| CommError::Buffer(error.to_string()))?;
            result.map(|()| buffer)
        })
    }

    /// This rank's part of the reduction of all buffers: elements `rank·len/world .. (rank + 1)·len/world`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: ReduceOp) -> Result<Vec<T>> {
        op.check(T::DTYPE)?;
        let tag = Tag { kind: Kind::ReduceScatter, dtype: T::DTYPE, count: values.len() as u64 };
        let mut copy = values.to_vec();
        let part = chunk(values.len(), self.0.world_size, self.0.rank);
        let result = self.issue(tag, move |engine| {
            engine.reduce_scatter(&mut copy, op)?;
            Ok(copy[part].to_vec())
        });
        result.wait()
    }

    /// The buffers of all ranks, one after the other; they must be of equal length.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if the lengths differ; otherwise that of the world.
    pub fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        let (len, rank, world) = (values.len(), self.0.rank, self.0.world_size);
        let tag = Tag { kind: Kind::AllGather, dtype: T::DTYPE, count: (len * world) as u64 };
        let mut all = vec![T::zeroed(); len * world];
        all[rank * len..(rank + 1) * len].copy_from_slice(values);
        let result = self.issue(tag, move |engine| {
            engine.all_gather(&mut all)?;
            Ok(all)
        });
        result.wait()
    }

    /// The buffers of all ranks, of whatever length.
    ///
    /// # Errors
    /// That of the world.
    pub fn all_gather_ragged<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        let tag = Tag { kind: Kind::AllGatherRagged, dtype: T::DTYPE, count: 0 };
        let own = bytemuck::cast_slice(values).to_vec();
        let all = self.issue(tag, move |engine| engine.all_gather_ragged(&own)).wait()?;
        all.iter().map(|bytes| typed(bytes)).collect()
    }

    /// The bytes of all ranks: for small facts that ranks tell each other.
    ///
    /// # Errors
    /// That of the world.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_ragged(bytes)
    }

    /// Every rank's buffer becomes the root's.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root; otherwise that of the world.
    pub fn broadcast<T: Element>(&self, values: &mut [T], root: usize) -> Result<()> {
        self.check_root("broadcast", root)?;
        self.on_slice(Kind::Broadcast, values, move |engine, values| engine.broadcast(values, root))
    }

    /// The root's buffer becomes the reduction of all; the others keep theirs.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`] and [`Communicator::broadcast`].
    pub fn reduce<T: Element>(&self, values: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        op.check(T::DTYPE)?;
        self.check_root("reduce", root)?;
        let is_root = self.0.rank == root;
        let before = (!is_root).then(|| values.to_vec());
        self.on_slice(Kind::Reduce, values, move |engine, values| engine.reduce(values, op, root))?;
        if let Some(before) = before {
            values.copy_from_slice(&before);
        }
        Ok(())
    }

    /// At the root the buffers of all ranks, elsewhere nothing.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn gather<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<Vec<T>>> {
        self.check_root("gather", root)?;
        let tag = Tag { kind: Kind::Gather, dtype: T::DTYPE, count: 0 };
        let own = bytemuck::cast_slice(values).to_vec();
        let all = self.issue(tag, move |engine| engine.gather(&own, root)).wait()?;
        all.iter().map(|bytes| typed(bytes)).collect()
    }

    /// Each rank's part of what the root gives; `parts` counts only there.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the root has not one part a rank; otherwise that of the world.
    pub fn scatter<T: Element>(&self, parts: &[Vec<T>], root: usize) -> Result<Vec<T>> {
        self.check_root("scatter", root)?;
        if self.0.rank == root && parts.len() != self.0.world_size {
            let problem = format!("{} parts for {} ranks", parts.len(), self.0.world_size);
            return Err(CommError::Argument { operation: "scatter", problem });
        }
        let tag = Tag { kind: Kind::Scatter, dtype: T::DTYPE, count: 0 };
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| bytemuck::cast_slice(part).to_vec()).collect();
        typed(&self.issue(tag, move |engine| engine.scatter(&parts, root)).wait()?)
    }

    /// Sends a buffer to one other rank, which must call [`Communicator::receive`]. Ranks that take no part call
    /// neither. Two ranks may send to each other before they receive; the system's buffers and a queue hold the
    /// message meanwhile.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank or it is this one; otherwise that of the world.
    pub fn send<T: Element>(&self, values: &[T], to: usize) -> Result<()> {
        self.check_other("send", to)?;
        let tag = Tag { kind: Kind::SendRecv, dtype: T::DTYPE, count: values.len() as u64 };
        let own = bytemuck::cast_slice(values).to_vec();
        self.issue_in(Scope::To(to), tag, move |engine| engine.send(to, &own)).wait()
    }

    /// Receives a buffer from one other rank; see [`Communicator::send`].
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if type or length differ; otherwise as [`Communicator::send`].
    pub fn receive<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        self.check_other("receive", from)?;
        let tag = Tag { kind: Kind::SendRecv, dtype: T::DTYPE, count: values.len() as u64 };
        let mut copy = values.to_vec();
        let result = self.issue_in(Scope::From(from), tag, move |engine| {
            engine.receive(from, bytemuck::cast_slice_mut(&mut copy))?;
            Ok(copy)
        });
        values.copy_from_slice(&result.wait()?);
        Ok(())
    }

    /// Waits until every rank has come here. Ranks at barriers of different names get an error naming both.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if names differ; otherwise that of the world.
    pub fn barrier(&self, name: &str) -> Result<()> {
        let tag = Tag { kind: Kind::Barrier, dtype: DType::U8, count: 0 };
        let own = name.as_bytes().to_vec();
        let names = self.issue(tag, move |engine| engine.all_gather_ragged(&own)).wait()?;
        match names.iter().position(|other| other != name.as_bytes()) {
            None => Ok(()),
            Some(rank) => Err(CommError::Mismatch {
                rank,
                ours: format!("barrier `{name}`"),
                theirs: format!("barrier `{}`", String::from_utf8_lossy(&names[rank])),
            }),
        }
    }

    /// Tells all ranks that this one gives up; their pending and later operations return
    /// [`CommError::Aborted`] with the reason. The first abort or loss of a world is the one that counts.
    pub fn abort(&self, reason: &str) {
        self.0.control.report(self.0.rank, Cause::Aborted(self.0.rank, reason.to_owned()));
    }

    /// Finishes queued operations and leaves the world in good order. Later operations return
    /// [`CommError::Closed`]. Dropping the last clone does the same.
    pub fn shutdown(&self) {
        drop(self.queue().jobs.take());
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        // Closes the links, after what is queued was written.
        drop(self.0.engine.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.0.control.leave();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.queue.get_mut().unwrap_or_else(PoisonError::into_inner).jobs.take());
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
        drop(self.engine.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.control.leave();
    }
}

fn all_reduce_kind(op: ReduceOp) -> Kind {
    match op {
        ReduceOp::Sum => Kind::AllReduceSum,
        ReduceOp::Mean => Kind::AllReduceMean,
        ReduceOp::Min => Kind::AllReduceMin,
        ReduceOp::Max => Kind::AllReduceMax,
        ReduceOp::Product => Kind::AllReduceProduct,
    }
}

/// Received bytes as elements; an error if they do not divide evenly.
fn typed<T: Element>(bytes: &[u8]) -> Result<Vec<T>> {
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        let problem = format!("{} bytes are not whole elements of {}", bytes.len(), T::DTYPE.name());
        return Err(CommError::Argument { operation: "receive", problem });
    }
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    Ok(values)
}

/// The communicators of a world of threads in this process, rank 0 first. Each may be moved to a thread of its
/// own.
///
/// # Errors
/// If the system refuses threads.
pub fn threads(world_size: usize) -> Result<Vec<Communicator>> {
    let failures: Vec<Arc<Failure>> = (0..world_size).map(|_| Arc::default()).collect();
    let timeout = crate::world::DEFAULT_OP_TIMEOUT;
    let control = Arc::new(Control::local(failures.clone()));
    #[cfg(target_os = "linux")]
    let mut boards = crate::shared::of_threads(world_size);
    crate::transport::local::world(world_size, &failures, timeout)
        .into_iter()
        .enumerate()
        .map(|(rank, transport)| {
            let (transport, failure) = (Box::new(transport), failures[rank].clone());
            #[cfg_attr(not(target_os = "linux"), allow(unused_mut))]
            let mut engine = Engine::new(rank, world_size, transport, failure, control.clone(), timeout);
            #[cfg(target_os = "linux")]
            {
                engine.board = boards[rank].take();
            }
            Communicator::start(rank, engine, control.clone())
                .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
        })
        .collect()
}
