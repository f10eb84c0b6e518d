//! While a thread replays: which of its work is recorded, which is known already and not issued again, and when graphs are launched.
//!
//! Work on the computing stream becomes part of a *segment*, a graph; whatever cannot, such as reading numbers or work of other
//! streams, ends the segment that is recorded and is done as always between two of them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use super::{Device, Stream};
use crate::driver::{Call, Captured, Executable, Kept, Node, Shape, last_captured};
use crate::{GpuError, Result};

thread_local! {
    static PLAYER: RefCell<Option<Player>> = const { RefCell::new(None) };
    /// The device that this thread replays on, by its address, and the number of what is replayed.
    static SCOPE: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// Work that can be part of a graph.
pub(crate) enum Work<'a> {
    /// A kernel, whose arguments and shape may differ from run to run.
    Kernel(Call<'a>),
    /// Anything else: the same work each time, which what is hashed says.
    Fixed(&'a dyn Fn(&mut DefaultHasher)),
}

impl Work<'_> {
    fn fingerprint(hash: &dyn Fn(&mut DefaultHasher)) -> u64 {
        let mut hasher = DefaultHasher::new();
        hash(&mut hasher);
        hasher.finish()
    }
}

/// A piece of recorded work.
#[derive(Debug)]
struct Op {
    action: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A kernel with what it was given last.
    Kernel {
        identity: usize,
        shape: Shape,
        arguments: Vec<u64>,
        node: Node,
    },
    Fixed(u64),
}

/// Work between two things that cannot be part of a graph.
#[derive(Debug)]
pub(crate) struct Segment {
    ops: Vec<Op>,
    executable: Executable,
    // The nodes are this graph's.
    _captured: Captured,
}

impl Segment {
    /// How many pieces of work it has.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Finds work to be that of place `at`, and gives it the arguments that it has now.
    fn follow(&mut self, at: usize, action: &str, work: &Work<'_>) -> Result<()> {
        let op = &mut self.ops[at];
        let same = match (&mut op.what, work) {
            (What::Kernel { identity, shape, arguments, node }, Work::Kernel(call)) => {
                let same = *identity == call.identity()?;
                if same && (*shape != call.shape || *arguments != call.arguments) {
                    call.put(&mut self.executable, *node)?;
                    *shape = call.shape;
                    arguments.clear();
                    arguments.extend_from_slice(call.arguments);
                }
                same
            }
            (What::Fixed(known), Work::Fixed(hash)) => *known == Work::fingerprint(hash),
            _ => false,
        };
        match same {
            true => Ok(()),
            false => {
                Err(differs(action, format!("`{}`, or the same of other memory or sizes, was", op.action)))
            }
        }
    }
}

fn differs(action: &str, problem: String) -> GpuError {
    GpuError::Replay { action: format!("`{action}`"), problem }
}

/// The segments of each branch.
pub(crate) type Segments = HashMap<Vec<u64>, Vec<Segment>>;

/// Branches that are recorded; in others everything is issued as always.
pub(crate) const MOST: usize = 32;

/// What is to be done with a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is issued as always.
    Issue,
    /// It is issued, and [`Device::recorded`] is told.
    Record,
    /// A graph has it.
    Known,
}

/// What a thread replays.
struct Player {
    device: Device,
    scope: u64,
    /// The branch that the run is in, its segments, and those of the others.
    path: Vec<u64>,
    segments: Vec<Segment>,
    others: Segments,
    /// The segment that comes next, or is under way, and how much of it was found.
    segment: usize,
    op: usize,
    /// What was captured of the segment that is recorded.
    capturing: Option<Vec<Op>>,
    /// Memory of others that the segment under way uses, until it is launched.
    holding: Vec<Kept>,
    /// What is done when that is captured and before it is launched.
    before_launch: Vec<Box<dyn FnOnce() -> Result<()>>>,
    /// Whether something was done for the first time, which nothing can be recorded with.
    abandoned: bool,
    /// The first thing that went wrong, also where nobody could be told.
    failed: Option<GpuError>,
}

impl Player {
    fn turn(&mut self, action: &str, work: &Work<'_>, hold: &dyn Fn(&mut Vec<Kept>)) -> Result<Turn> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.abandoned {
            return Ok(Turn::Issue);
        }
        if self.capturing.is_some() {
            return Ok(Turn::Record);
        }
        let Some(segment) = self.segments.get_mut(self.segment) else {
            self.device.begin_capture_of(self.scope)?;
            self.capturing = Some(Vec::new());
            return Ok(Turn::Record);
        };
        segment.follow(self.op, action, work)?;
        self.op += 1;
        match self.op == segment.ops.len() {
            true => {
                (self.segment, self.op) = (self.segment + 1, 0);
                segment.executable.launch(self.device.stream(Stream::Compute))?;
                self.holding.clear();
            }
            // Freed before the launch it would be freed before the work.
            false => hold(&mut self.holding),
        }
        Ok(Turn::Known)
    }

    fn recorded(&mut self, action: &str, work: &Work<'_>) -> Result<()> {
        let what = match work {
            Work::Kernel(call) => What::Kernel {
                identity: call.identity()?,
                shape: call.shape,
                arguments: call.arguments.to_vec(),
                node: last_captured(self.device.stream(Stream::Compute))?,
            },
            Work::Fixed(hash) => What::Fixed(Work::fingerprint(hash)),
        };
        if let Some(ops) = &mut self.capturing {
            ops.push(Op { action: action.to_owned(), what });
        }
        Ok(())
    }

    /// Everything that came before is issued now.
    fn flush(&mut self) -> Result<()> {
        if let Some(ops) = self.capturing.take() {
            let (captured, left) = self.device.end_capture();
            std::mem::take(&mut self.before_launch).into_iter().try_for_each(|send| send())?;
            let captured = captured?;
            if ops.is_empty() {
                return Ok(());
            }
            let mut executable = captured.instantiate(left.into_kept())?;
            executable.launch(self.device.stream(Stream::Compute))?;
            self.segments.push(Segment { ops, executable, _captured: captured });
            self.segment = self.segments.len();
            return Ok(());
        }
        match self.segments.get(self.segment) {
            Some(segment) if self.op > 0 => {
                let next = &segment.ops[self.op].action;
                Err(differs("work that no graph can have", format!("`{next}` came first")))
            }
            _ => Ok(()),
        }
    }

    /// Goes on in a branch. False if nothing is recorded any more.
    fn branch(&mut self, key: u64) -> Result<bool> {
        self.flush()?;
        if self.abandoned {
            return Ok(false);
        }
        let path = self.path.iter().copied().chain([key]).collect();
        self.others.insert(std::mem::replace(&mut self.path, path), std::mem::take(&mut self.segments));
        match self.others.remove(&self.path) {
            Some(segments) => self.segments = segments,
            None if self.others.len() >= MOST => self.abandoned = true,
            None => {}
        }
        (self.segment, self.op) = (0, 0);
        Ok(true)
    }

    /// Remembers what went wrong.
    fn noting<R>(&mut self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        result
    }
}

/// Replaying on a device. All of these concern the calling thread alone.
impl Device {
    /// Begins to replay what these segments have, and to record what follows them.
    pub(crate) fn begin_replay(&self, scope: u64, mut others: Segments) -> Result<()> {
        if SCOPE.get().is_some() {
            let problem = "this thread replays already".to_owned();
            return Err(GpuError::Capture { action: "a replay".to_owned(), problem });
        }
        SCOPE.set(Some((self.address(), scope)));
        let player = Player {
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
        PLAYER.set(Some(player));
        Ok(())
    }

    /// Ends it: what is recorded now, unless something went wrong.
    pub(crate) fn end_replay(&self) -> Result<Segments> {
        let flushed = self.flush();
        SCOPE.set(None);
        let Some(mut player) = PLAYER.take() else {
            return Ok(Segments::new());
        };
        if player.capturing.take().is_some() {
            drop(self.end_capture());
        }
        match player.failed {
            Some(error) => Err(error),
            None => {
                flushed?;
                if !player.abandoned {
                    player.others.insert(player.path, player.segments);
                }
                Ok(player.others)
            }
        }
    }

    fn address(&self) -> usize {
        std::sync::Arc::as_ptr(&self.0).addr()
    }

    /// The number of what this thread captures or replays, whose memory is its own.
    pub(crate) fn scope(&self) -> Option<u64> {
        match SCOPE.get() {
            Some((device, scope)) if device == self.address() => Some(scope),
            _ => self.capture(),
        }
    }

    /// Does something with this thread's player; while that is done there is none.
    fn with_player<R>(&self, with: impl FnOnce(&mut Player) -> R) -> Option<R> {
        let (device, _) = SCOPE.get()?;
        if device != self.address() {
            return None;
        }
        let mut player = PLAYER.take()?;
        let result = with(&mut player);
        PLAYER.set(Some(player));
        Some(result)
    }

    /// What is to be done with a piece of work for the computing stream, whose memory `hold` holds.
    pub(crate) fn turn(&self, action: &str, work: &Work<'_>, hold: &dyn Fn(&mut Vec<Kept>)) -> Result<Turn> {
        let turn = |player: &mut Player| {
            let turn = player.turn(action, work, hold);
            player.noting(turn)
        };
        self.with_player(turn).unwrap_or(Ok(Turn::Issue))
    }

    /// A piece of work was captured.
    pub(crate) fn recorded(&self, action: &str, work: &Work<'_>) -> Result<()> {
        let recorded = |player: &mut Player| {
            let recorded = player.recorded(action, work);
            player.noting(recorded)
        };
        self.with_player(recorded).unwrap_or(Ok(()))
    }

    /// Remembers what went wrong in a replay, so that its end tells.
    pub(crate) fn noting<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.with_player(|player| {
                player.failed.get_or_insert_with(|| error.clone());
            });
        }
        result
    }

    /// Sees to it that whatever this thread has given the computing stream is on its way: before anything that no graph can have.
    pub(crate) fn flush(&self) -> Result<()> {
        let flush = |player: &mut Player| {
            let flushed = player.flush();
            player.noting(flushed)
        };
        self.with_player(flush).unwrap_or(Ok(()))
    }

    /// Something is done for the first time, and would not be done again by a graph: what is replayed is done as always from here
    /// on and recorded another time, and a capture fails.
    pub(crate) fn first_use(&self, action: &str) -> Result<()> {
        self.flush()?;
        match self.with_player(|player| player.abandoned = true) {
            Some(()) => Ok(()),
            None => self.refuse_in_capture(action, super::FIRST),
        }
    }

    /// Whether this thread replays, and nothing of the run is recorded or known any more.
    pub(crate) fn issues_all(&self) -> bool {
        self.with_player(|player| player.abandoned).unwrap_or(false)
    }

    /// Goes on in a branch of what this thread replays, if it does.
    pub(crate) fn branch(&self, key: u64) -> Result<bool> {
        let branch = |player: &mut Player| {
            let branched = player.branch(key);
            player.noting(branched)
        };
        self.with_player(branch).unwrap_or(Ok(false))
    }

    /// Whether this thread records, so that the computing stream captures what it is given.
    pub(crate) fn records(&self) -> bool {
        self.with_player(|player| player.capturing.is_some()).unwrap_or(false)
    }

    /// Does something when what is recorded was captured and before it is launched.
    pub(crate) fn send_aside(&self, send: impl FnOnce() -> Result<()> + 'static) -> Result<()> {
        self.with_player(|player| player.before_launch.push(Box::new(send)));
        Ok(())
    }

    /// Gives the computing stream work at once, before what this thread replays and has not launched yet.
    pub(crate) fn aside<R>(&self, give: impl FnOnce() -> R) -> R {
        let mut give = Some(give);
        let given = self.with_player(|_| give.take().map(|give| give()));
        match (given.flatten(), give) {
            (Some(given), _) => given,
            (None, Some(give)) => give(),
            (None, None) => unreachable!("it was given or it is there"),
        }
    }
}
