//! State of a replay: the recorded work, the work of the current run, and the launches of graphs.
//!
//! Work on the compute stream becomes part of a *segment*, which is one graph. Work that cannot be captured, such as a download
//! or work of other streams, ends the segment. It is issued eagerly between two segments.

use std::cell::{Cell, RefCell};

use super::segment::{Operation, Segment, Segments, Work, differs};
use super::{Device, Stream};
use crate::driver::KeepAlive;
use crate::{GpuError, Result};

thread_local! {
    static STATE: RefCell<Option<ReplayState>> = const { RefCell::new(None) };
    /// The address of the device on which this thread replays, and the scope.
    static SCOPE: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// The maximum number of recorded branches. Others run eagerly.
pub(crate) const MAX_BRANCHES: usize = 32;

/// The treatment of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayAction {
    /// Issue it eagerly.
    Issue,
    /// Issue it, and call [`Device::record`].
    Record,
    /// Do not issue it: it is part of a graph.
    Skip,
}

/// The state of a thread's replay.
struct ReplayState {
    device: Device,
    scope: u64,
    /// The branch of this run, its segments, and those of the other branches.
    path: Vec<u64>,
    segments: Vec<Segment>,
    others: Segments,
    /// The current segment, and the operations of it that were matched.
    segment: usize,
    op: usize,
    /// The operations captured for the segment that is being recorded.
    capturing: Option<Vec<Operation>>,
    /// Other owners' memory that the current segment uses, until it is launched.
    holding: Vec<KeepAlive>,
    /// Actions to run after the capture and before the launch.
    before_launch: Vec<Box<dyn FnOnce() -> Result<()>>>,
    /// True after a first use, which cannot be recorded: the rest of the run is eager.
    abandoned: bool,
    /// The first error, even if the caller dropped it.
    failed: Option<GpuError>,
}

impl ReplayState {
    fn action_for(
        &mut self,
        action: &str,
        work: &Work<'_>,
        hold: &dyn Fn(&mut Vec<KeepAlive>),
    ) -> Result<ReplayAction> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.abandoned {
            return Ok(ReplayAction::Issue);
        }
        if self.capturing.is_some() {
            return Ok(ReplayAction::Record);
        }
        let Some(segment) = self.segments.get_mut(self.segment) else {
            self.device.begin_capture_of(self.scope)?;
            self.capturing = Some(Vec::new());
            return Ok(ReplayAction::Record);
        };
        segment.follow(self.op, action, work)?;
        self.op += 1;
        match self.op == segment.len() {
            true => {
                (self.segment, self.op) = (self.segment + 1, 0);
                segment.launch(self.device.stream(Stream::Compute))?;
                self.holding.clear();
            }
            // Memory that is freed before the launch would be freed before the work.
            false => hold(&mut self.holding),
        }
        Ok(ReplayAction::Skip)
    }

    fn record(&mut self, action: &str, work: &Work<'_>) -> Result<()> {
        let operation = Operation::captured(self.device.stream(Stream::Compute), action, work)?;
        if let Some(operations) = &mut self.capturing {
            operations.push(operation);
        }
        Ok(())
    }

    /// Issues all work so far.
    fn flush(&mut self) -> Result<()> {
        if let Some(operations) = self.capturing.take() {
            let (captured, left) = self.device.end_capture();
            std::mem::take(&mut self.before_launch).into_iter().try_for_each(|send| send())?;
            let captured = captured?;
            if operations.is_empty() {
                return Ok(());
            }
            let mut segment = Segment::new(operations, captured, left.into_kept())?;
            segment.launch(self.device.stream(Stream::Compute))?;
            self.segments.push(segment);
            self.segment = self.segments.len();
            return Ok(());
        }
        match self.segments.get(self.segment) {
            Some(segment) if self.op > 0 => {
                let next = segment.action(self.op);
                Err(differs("work that cannot be part of a graph", format!("`{next}` came first")))
            }
            _ => Ok(()),
        }
    }

    /// Enters a branch. Returns false if the rest of the run is eager.
    fn branch(&mut self, key: u64) -> Result<bool> {
        self.flush()?;
        if self.abandoned {
            return Ok(false);
        }
        let path = self.path.iter().copied().chain([key]).collect();
        self.others.insert(std::mem::replace(&mut self.path, path), std::mem::take(&mut self.segments));
        match self.others.remove(&self.path) {
            Some(segments) => self.segments = segments,
            None if self.others.len() >= MAX_BRANCHES => self.abandoned = true,
            None => {}
        }
        (self.segment, self.op) = (0, 0);
        Ok(true)
    }

    /// Remembers the first error.
    fn remember_error<R>(&mut self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        result
    }
}

/// Replays on a device, of the calling thread alone.
impl Device {
    /// Begins to replay the given segments, and to record the work after them.
    pub(crate) fn begin_replay(&self, scope: u64, mut others: Segments) -> Result<()> {
        if SCOPE.get().is_some() {
            let problem = "this thread is replaying already".to_owned();
            return Err(GpuError::Capture { action: "a replay".to_owned(), problem });
        }
        SCOPE.set(Some((self.address(), scope)));
        let state = ReplayState {
            device: self.clone(),
            scope,
            path: Vec::new(),
            segments: others.remove(&Vec::new()).unwrap_or_default(),
            others,
            segment: 0,
            op: 0,
            capturing: None,
            holding: Vec::new(),
            before_launch: Vec::new(),
            abandoned: false,
            failed: None,
        };
        STATE.set(Some(state));
        Ok(())
    }

    /// Ends the replay. Returns the segments, or the first error.
    pub(crate) fn end_replay(&self) -> Result<Segments> {
        let flushed = self.flush();
        SCOPE.set(None);
        let Some(mut state) = STATE.take() else {
            return Ok(Segments::new());
        };
        if state.capturing.take().is_some() {
            drop(self.end_capture());
        }
        match state.failed {
            Some(error) => Err(error),
            None => {
                flushed?;
                if !state.abandoned {
                    state.others.insert(state.path, state.segments);
                }
                Ok(state.others)
            }
        }
    }

    fn address(&self) -> usize {
        std::sync::Arc::as_ptr(&self.0).addr()
    }

    /// Returns the scope that this thread captures or replays. Its memory belongs to that scope.
    pub(crate) fn scope(&self) -> Option<u64> {
        match SCOPE.get() {
            Some((device, scope)) if device == self.address() => Some(scope),
            _ => self.capture(),
        }
    }

    /// Runs `with` on this thread's state, which is taken during the call.
    fn with_state<R>(&self, with: impl FnOnce(&mut ReplayState) -> R) -> Option<R> {
        let (device, _) = SCOPE.get()?;
        if device != self.address() {
            return None;
        }
        let mut state = STATE.take()?;
        let result = with(&mut state);
        STATE.set(Some(state));
        Some(result)
    }

    /// Returns the treatment of a piece of work for the compute stream. `hold` keeps its memory.
    pub(crate) fn action_for(
        &self,
        action: &str,
        work: &Work<'_>,
        hold: &dyn Fn(&mut Vec<KeepAlive>),
    ) -> Result<ReplayAction> {
        let treatment = |state: &mut ReplayState| {
            let treatment = state.action_for(action, work, hold);
            state.remember_error(treatment)
        };
        self.with_state(treatment).unwrap_or(Ok(ReplayAction::Issue))
    }

    /// Records a captured piece of work.
    pub(crate) fn record(&self, action: &str, work: &Work<'_>) -> Result<()> {
        let record = |state: &mut ReplayState| {
            let recorded = state.record(action, work);
            state.remember_error(recorded)
        };
        self.with_state(record).unwrap_or(Ok(()))
    }

    /// Remembers an error, so that the end of the replay reports it.
    pub(crate) fn remember_error<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.with_state(|state| {
                state.failed.get_or_insert_with(|| error.clone());
            });
        }
        result
    }

    /// Issues all work that this thread gave the compute stream: call it before work that cannot be part of a graph.
    pub(crate) fn flush(&self) -> Result<()> {
        let flush = |state: &mut ReplayState| {
            let flushed = state.flush();
            state.remember_error(flushed)
        };
        self.with_state(flush).unwrap_or(Ok(()))
    }

    /// Handles a first use, which a graph would not repeat. A replay runs eagerly from here on and is recorded in a later run. A
    /// capture fails.
    pub(crate) fn first_use(&self, action: &str) -> Result<()> {
        self.flush()?;
        match self.with_state(|state| state.abandoned = true) {
            Some(()) => Ok(()),
            None => self.refuse_in_capture(action, super::FIRST),
        }
    }

    /// Returns true if this thread replays, and the rest of the run is eager.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.with_state(|state| state.abandoned).unwrap_or(false)
    }

    /// Enters a branch of this thread's replay. Returns false without one, or if the rest of the run is eager.
    pub(crate) fn branch(&self, key: u64) -> Result<bool> {
        let branch = |state: &mut ReplayState| {
            let branched = state.branch(key);
            state.remember_error(branched)
        };
        self.with_state(branch).unwrap_or(Ok(false))
    }

    /// Returns true if this thread records, so that the compute stream captures.
    pub(crate) fn records(&self) -> bool {
        self.with_state(|state| state.capturing.is_some()).unwrap_or(false)
    }

    /// Runs `send` after the current capture and before its launch.
    pub(crate) fn before_launch(&self, send: impl FnOnce() -> Result<()> + 'static) -> Result<()> {
        self.with_state(|state| state.before_launch.push(Box::new(send)));
        Ok(())
    }

    /// Runs `give`, which issues work on the compute stream at once, ahead of replayed work that was not launched yet.
    pub(crate) fn issue_first<R>(&self, give: impl FnOnce() -> R) -> R {
        let mut give = Some(give);
        let given = self.with_state(|_| give.take().map(|give| give()));
        match (given.flatten(), give) {
            (Some(given), _) => given,
            (None, Some(give)) => give(),
            (None, None) => unreachable!("given or not"),
        }
    }
}
