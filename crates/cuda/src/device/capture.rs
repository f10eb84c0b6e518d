//! While a graph is captured: which streams take part, who may issue what, and what must outlive the capture.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::Stream;
use super::order::Times;
use crate::driver::Kept;
use crate::{GpuError, Result};

/// The capture of a device, if there is one.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Whether there is one: asked at every launch, so without a lock.
    active: AtomicBool,
    count: AtomicU64,
    now: Mutex<Option<Capture>>,
}

#[derive(Debug)]
struct Capture {
    id: u64,
    thread: ThreadId,
    /// Which streams take part.
    members: [bool; Stream::COUNT],
    /// What streams knew of each other before.
    before: [Times; Stream::COUNT],
    /// The first thing that was refused: the graph would lack it.
    refused: Option<GpuError>,
    left: Left,
}

/// What a capture leaves.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// What the graph uses, by address.
    kept: HashMap<usize, Kept>,
    /// What would have been freed meanwhile.
    deferred: Vec<Kept>,
}

impl Left {
    /// What the graph uses; the rest is freed.
    pub(crate) fn into_kept(self) -> Vec<Kept> {
        drop(self.deferred);
        self.kept.into_values().collect()
    }
}

/// Whether work becomes part of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is run.
    Run,
    /// It is captured, and its stream has to wait for the computing one first if `fork`.
    Captured { fork: bool },
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

    /// A number that no other one has.
    pub(super) fn number(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins one on this thread.
    pub(super) fn begin(&self, id: u64, before: [Times; Stream::COUNT]) -> Result<()> {
        let mut now = self.now();
        if let Some(capture) = now.as_mut() {
            return Err(capture.refuse("a capture", "the GPU captures one already"));
        }
        let mut members = [false; Stream::COUNT];
        members[Stream::Compute as usize] = true;
        let (thread, left) = (thread::current().id(), Left::default());
        *now = Some(Capture { id, thread, members, before, refused: None, left });
        self.active.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends it: what streams knew before, what it leaves, and what was refused.
    pub(super) fn end(&self) -> Option<([Times; Stream::COUNT], Left, Option<GpuError>)> {
        let ended = self.now().take();
        self.active.store(false, Ordering::SeqCst);
        ended.map(|capture| (capture.before, capture.left, capture.refused))
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// The capture of this thread.
    pub(super) fn mine(&self) -> Option<u64> {
        if !self.is_active() {
            return None;
        }
        self.now().as_ref().filter(|capture| capture.is_mine()).map(|capture| capture.id)
    }

    /// Fails if this thread captures: for what would be done once, and not again by the graph.
    pub(super) fn refuse(&self, action: &str, problem: &str) -> Result<()> {
        if !self.is_active() {
            return Ok(());
        }
        match self.now().as_mut() {
            Some(capture) if capture.is_mine() => Err(capture.refuse(action, problem)),
            _ => Ok(()),
        }
    }

    /// Fails if the host would wait for a stream that captures; without one, for all of the device.
    pub(super) fn refuse_waiting(&self, action: &str, stream: Option<Stream>) -> Result<()> {
        const PROBLEM: &str = "the host would wait for work that is recorded and not run";
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

    /// Whether work on a stream is run or captured.
    pub(super) fn admit(&self, action: &str, stream: Stream) -> Result<Admission> {
        if !self.is_active() {
            return Ok(Admission::Run);
        }
        let mut now = self.now();
        let Some(capture) = now.as_mut() else { return Ok(Admission::Run) };
        let member = capture.members[stream as usize];
        match (capture.is_mine(), member) {
            (true, member) => Ok(Admission::Captured { fork: !member }),
            (false, false) => Ok(Admission::Run),
            (false, true) => Err(capture.refuse(action, "another thread captures this stream")),
        }
    }

    /// Whether a stream may wait for another one; if that one takes part in a capture, so does the first from now on.
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
            (false, ..) => Err(capture.refuse(&action(), "another thread captures one of them")),
            (true, true, false) => {
                let problem =
                    "the latter takes no part in the capture: wait for it before the graph is launched";
                Err(capture.refuse(&action(), problem))
            }
            (true, _, true) => {
                capture.members[waiter as usize] = true;
                Ok(())
            }
        }
    }

    /// Keeps something that captured work uses for as long as the graph is there.
    pub(super) fn keep(&self, address: usize, make: impl FnOnce() -> Kept) {
        if let Some(capture) = self.now().as_mut() {
            capture.left.kept.entry(address).or_insert_with(make);
        }
    }

    /// Keeps something until the capture is over, if there is one.
    pub(super) fn defer(&self, make: impl FnOnce() -> Kept) {
        if !self.is_active() {
            return;
        }
        if let Some(capture) = self.now().as_mut() {
            capture.left.deferred.push(make());
        }
    }
}
