//! State of a graph capture: the streams that take part, the thread that may issue work, and the resources that must outlive the
//! capture.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use cudarc::driver::CudaStream;

use super::order::Times;
use super::{Device, Stream};
use crate::driver::{self, KeepAlive, failed};
use crate::{GpuError, Result};

/// The capture of a device, if there is one.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// True during a capture. Read at every launch, so without a lock.
    active: AtomicBool,
    count: AtomicU64,
    now: Mutex<Option<Capture>>,
}

#[derive(Debug)]
struct Capture {
    id: u64,
    thread: ThreadId,
    /// The streams that take part.
    members: [bool; Stream::COUNT],
    /// The clocks of the streams before the capture.
    before: [Times; Stream::COUNT],
    /// The first operation that was refused: the graph would lack it.
    refused: Option<GpuError>,
    left: CaptureResources,
}

/// Resources that remain after a capture.
#[derive(Debug, Default)]
pub(crate) struct CaptureResources {
    /// Resources that the graph uses, by address.
    kept: HashMap<usize, KeepAlive>,
    /// Resources whose release was deferred to the end of the capture.
    deferred: Vec<KeepAlive>,
}

impl CaptureResources {
    /// Returns the resources that the graph uses, and releases the rest.
    pub(crate) fn into_kept(self) -> Vec<KeepAlive> {
        drop(self.deferred);
        self.kept.into_values().collect()
    }
}

/// The way in which work is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The work runs.
    Run,
    /// The work is captured. Its stream must wait for the compute stream first if `fork`.
    Capture { fork: bool },
}

impl Capture {
    fn is_mine(&self) -> bool {
        self.thread == thread::current().id()
    }

    fn refuse(&mut self, action: &str, problem: &str) -> GpuError {
        let error = GpuError::Capture { action: action.to_owned(), problem: problem.to_owned() };
        if self.is_mine() {
            self.refused.get_or_insert_with(|| error.clone());
        }
        error
    }
}

impl Captures {
    fn now(&self) -> MutexGuard<'_, Option<Capture>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new scope number.
    pub(super) fn number(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins a capture on this thread.
    pub(super) fn begin(&self, id: u64, before: [Times; Stream::COUNT]) -> Result<()> {
        let mut now = self.now();
        if let Some(capture) = now.as_mut() {
            return Err(capture.refuse("a capture", "the GPU is capturing already"));
        }
        let mut members = [false; Stream::COUNT];
        members[Stream::Compute as usize] = true;
        let (thread, left) = (thread::current().id(), CaptureResources::default());
        *now = Some(Capture { id, thread, members, before, refused: None, left });
        self.active.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the capture. Returns the clocks before it, its resources, and the first refused operation.
    pub(super) fn end(&self) -> Option<([Times; Stream::COUNT], CaptureResources, Option<GpuError>)> {
        let ended = self.now().take();
        self.active.store(false, Ordering::SeqCst);
        ended.map(|capture| (capture.before, capture.left, capture.refused))
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Returns the scope of this thread's capture.
    pub(super) fn mine(&self) -> Option<u64> {
        if !self.is_active() {
            return None;
        }
        self.now().as_ref().filter(|capture| capture.is_mine()).map(|capture| capture.id)
    }

    /// Fails if this thread captures: a graph would not repeat an action of the host.
    pub(super) fn refuse(&self, action: &str, problem: &str) -> Result<()> {
        if !self.is_active() {
            return Ok(());
        }
        match self.now().as_mut() {
            Some(capture) if capture.is_mine() => Err(capture.refuse(action, problem)),
            _ => Ok(()),
        }
    }

    /// Fails if the host would wait for a stream that captures. Without a stream, for any stream.
    pub(super) fn refuse_host_wait(&self, action: &str, stream: Option<Stream>) -> Result<()> {
        const PROBLEM: &str = "the host would wait for work that is captured and not run";
        if !self.is_active() {
            return Ok(());
        }
        match self.now().as_mut() {
            Some(capture)
                if capture.is_mine() || stream.is_none_or(|stream| capture.members[stream as usize]) =>
            {
                Err(capture.refuse(action, PROBLEM))
            }
            _ => Ok(()),
        }
    }

    /// Returns the way in which work on a stream is issued.
    pub(super) fn admit(&self, action: &str, stream: Stream) -> Result<Admission> {
        if !self.is_active() {
            return Ok(Admission::Run);
        }
        let mut now = self.now();
        let Some(capture) = now.as_mut() else { return Ok(Admission::Run) };
        let member = capture.members[stream as usize];
        match (capture.is_mine(), member) {
            (true, member) => Ok(Admission::Capture { fork: !member }),
            (false, false) => Ok(Admission::Run),
            (false, true) => Err(capture.refuse(action, "another thread captures this stream")),
        }
    }

    /// Checks that a stream may wait for another one. The waiter joins the capture if the other stream takes part.
    pub(super) fn admit_wait(&self, waiter: Stream, waited: Stream) -> Result<()> {
        if !self.is_active() {
            return Ok(());
        }
        let mut now = self.now();
        let Some(capture) = now.as_mut() else { return Ok(()) };
        let [joins, source] = [waiter, waited].map(|stream| capture.members[stream as usize]);
        let action = || format!("a wait of the {waiter} stream for the {waited} stream");
        match (capture.is_mine(), joins, source) {
            (_, false, false) => Ok(()),
            (false, ..) => Err(capture.refuse(&action(), "another thread captures one of the two")),
            (true, true, false) => {
                let problem =
                    "the latter is not part of the capture: wait for it before the graph is launched";
                Err(capture.refuse(&action(), problem))
            }
            (true, _, true) => {
                capture.members[waiter as usize] = true;
                Ok(())
            }
        }
    }

    /// Keeps a resource of captured work as long as the graph exists.
    pub(super) fn keep(&self, address: usize, make: impl FnOnce() -> KeepAlive) {
        if let Some(capture) = self.now().as_mut() {
            capture.left.kept.entry(address).or_insert_with(make);
        }
    }

    /// Keeps a resource until the end of the capture, if there is one.
    pub(super) fn defer(&self, make: impl FnOnce() -> KeepAlive) {
        if !self.is_active() {
            return;
        }
        if let Some(capture) = self.now().as_mut() {
            capture.left.deferred.push(make());
        }
    }
}

/// Captures of graphs.
impl Device {
    /// Returns the stream in whose order memory is allocated: the compute stream, or a separate one during a capture.
    pub(crate) fn allocating(&self) -> Result<&Arc<CudaStream>> {
        if !self.0.captures.is_active() {
            return Ok(&self.0.compute);
        }
        if let Some(reserve) = self.0.reserve.get() {
            return Ok(reserve);
        }
        let made = self.0.context.new_stream().map_err(failed("create a stream"))?;
        Ok(self.0.reserve.get_or_init(|| made))
    }

    /// Returns a new scope number.
    pub(crate) fn new_scope(&self) -> u64 {
        self.0.captures.number()
    }

    /// Begins to capture this thread's work on the compute stream, under a number of [`Device::new_scope`].
    pub(crate) fn begin_capture_of(&self, scope: u64) -> Result<()> {
        // Earlier work finishes first; it is not part of the graph.
        if !self.0.captures.is_active() {
            self.wait(Stream::Compute, Stream::Communication)?;
            self.wait(Stream::Compute, Stream::Copies)?;
        }
        self.0.captures.begin(scope, self.0.order.all())?;
        if let Err(error) = driver::begin_capture(&self.0.compute) {
            self.0.captures.end();
            return Err(error);
        }
        Ok(())
    }

    /// Ends the capture. Returns the graph, or the error of the first refused operation, and the resources to keep.
    pub(crate) fn end_capture(&self) -> (Result<driver::CapturedGraph>, CaptureResources) {
        let captured = driver::end_capture(&self.0.compute);
        let Some((before, left, refused)) = self.0.captures.end() else {
            return (captured, CaptureResources::default());
        };
        self.0.order.forget(before);
        let joined = match self.0.reserve.get() {
            Some(reserve) => self.0.compute.join(reserve).map_err(failed("make a stream wait")),
            None => Ok(()),
        };
        match refused {
            Some(error) => (Err(error), left),
            None => (captured.and_then(|captured| joined.map(|()| captured)), left),
        }
    }

    /// Returns the scope of this thread's capture.
    pub(crate) fn capture(&self) -> Option<u64> {
        self.0.captures.mine()
    }

    /// Returns true if work on a stream is captured. The stream joins the capture.
    pub(crate) fn admit(&self, action: &str, stream: Stream) -> Result<bool> {
        match self.0.captures.admit(action, stream)? {
            Admission::Run => Ok(false),
            Admission::Capture { fork } => {
                if fork {
                    self.wait(stream, Stream::Compute)?;
                }
                Ok(true)
            }
        }
    }

    /// Fails if this thread captures: a graph would not repeat an action of the host.
    pub(crate) fn refuse_in_capture(&self, action: &str, problem: &str) -> Result<()> {
        self.0.captures.refuse(action, problem)
    }

    /// Fails if the host would wait for a stream that captures.
    pub(crate) fn refuse_host_wait(&self, action: &str, stream: Stream) -> Result<()> {
        self.flush()?;
        self.0.captures.refuse_host_wait(action, Some(stream))
    }

    /// Keeps a resource of captured work as long as the graph exists.
    pub(crate) fn keep(&self, address: usize, make: impl FnOnce() -> KeepAlive) {
        self.0.captures.keep(address, make);
    }

    /// Keeps a resource as long as the graph exists that this thread captures, if it captures.
    pub(crate) fn keep_for_graph<T: Send + Sync + 'static>(&self, what: &Arc<T>) {
        if self.capture().is_some() {
            self.keep(Arc::as_ptr(what).addr(), || what.clone());
        }
    }

    /// Keeps a resource until no graph is captured.
    pub(crate) fn defer(&self, make: impl FnOnce() -> KeepAlive) {
        self.0.captures.defer(make);
    }
}
