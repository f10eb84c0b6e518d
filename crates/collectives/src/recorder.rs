//! The flight recorder: the last operations of this rank, reported when the world breaks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::operation::{Scope, Tag};

/// The number of operations that are kept.
const KEPT: usize = 64;

/// The state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// It is running.
    Running,
    /// It ended without an error.
    Done,
    /// It ended with an error.
    Failed,
}

/// An operation in the flight recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// The communicator: 0 is the world. Other numbers are known to the ranks of that communicator only.
    pub communicator: u32,
    /// The operation's number there. Messages between two ranks are numbered by pair and direction.
    pub sequence: u64,
    /// Its name and reduction.
    pub operation: String,
    /// Bytes of the buffer; 0 if ranks may differ.
    pub bytes: u64,
    /// The element type.
    pub dtype: String,
    /// The algorithm.
    pub algorithm: String,
    /// The caller's label, such as the bucket of gradients; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The other rank of a message, by its number in the communicator. `None` for operations of all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// Its state.
    pub state: OperationState,
    /// Its start, in seconds since the world began.
    pub started: f64,
    /// Its duration in seconds; up to now if it is running.
    pub seconds: f64,
}

/// The activity of a rank, for another that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankActivity {
    /// The last collective operation that it has begun on the communicator.
    pub(crate) sequence: Option<u64>,
    /// A description of the last operation that it has begun anywhere.
    pub(crate) last: String,
}

struct Entry {
    communicator: u32,
    sequence: u64,
    scope: Scope,
    tag: Tag,
    label: Option<Arc<str>>,
    state: OperationState,
    started: Instant,
    ended: Instant,
}

/// The last operations of all communicators of a rank.
pub(crate) struct Recorder {
    begun: Instant,
    entries: Mutex<VecDeque<Entry>>,
    /// The ranks of each communicator, by their numbers in the world.
    members: Mutex<BTreeMap<u32, Vec<usize>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { begun: Instant::now(), entries: Mutex::default(), members: Mutex::default() }
    }
}

impl Recorder {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, communicator: u32, scope: Scope, sequence: u64, tag: Tag) {
        let now = Instant::now();
        let state = OperationState::Running;
        let mut entries = self.entries();
        if entries.len() == KEPT {
            entries.pop_front();
        }
        let label = None;
        entries.push_back(Entry {
            communicator,
            sequence,
            scope,
            tag,
            label,
            state,
            started: now,
            ended: now,
        });
    }

    /// Labels the newest operation of a communicator.
    pub(crate) fn label(&self, communicator: u32, label: &Arc<str>) {
        let mut entries = self.entries();
        if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.communicator == communicator) {
            entry.label = Some(label.clone());
        }
    }

    /// Records the ranks of a communicator.
    pub(crate) fn set_members(&self, communicator: u32, members: &[usize]) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(communicator, members.to_vec());
    }

    /// Returns the ranks of each communicator.
    pub(crate) fn members(&self) -> BTreeMap<u32, Vec<usize>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn end(&self, communicator: u32, succeeded: bool) {
        let mut entries = self.entries();
        let running =
            |entry: &&mut Entry| entry.communicator == communicator && entry.state == OperationState::Running;
        if let Some(entry) = entries.iter_mut().rev().find(running) {
            entry.state = if succeeded { OperationState::Done } else { OperationState::Failed };
            entry.ended = Instant::now();
        }
    }

    /// Returns the activity of this rank, for one that waits on a communicator.
    pub(crate) fn activity(&self, communicator: u32) -> RankActivity {
        let entries = self.entries();
        let of_it = |entry: &&Entry| entry.communicator == communicator && entry.scope == Scope::World;
        let sequence = entries.iter().rev().find(of_it).map(|entry| entry.sequence);
        let last = entries.back().map_or_else(
            || "nothing yet".to_owned(),
            |entry| {
                let what = entry.tag.describe(entry.sequence);
                let (since, took) = (entry.started.elapsed(), entry.ended - entry.started);
                match entry.state {
                    OperationState::Running => format!("{what}, for {:.1} s", since.as_secs_f64()),
                    OperationState::Done => {
                        let ago = since.saturating_sub(took).as_secs_f64();
                        format!("{what}, done {ago:.1} s ago")
                    }
                    OperationState::Failed => format!("{what}, failed"),
                }
            },
        );
        RankActivity { sequence, last }
    }

    /// Returns the seconds since the world began.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Returns the recorded operations, the oldest first.
    pub(crate) fn recent(&self) -> Vec<OperationRecord> {
        let record = |entry: &Entry| {
            let running = entry.state == OperationState::Running;
            let took = if running { entry.started.elapsed() } else { entry.ended - entry.started };
            OperationRecord {
                communicator: entry.communicator,
                sequence: entry.sequence,
                operation: entry.tag.name(),
                bytes: entry.tag.bytes() as u64,
                dtype: entry.tag.dtype.name().to_owned(),
                algorithm: entry.tag.algorithm.name().to_owned(),
                label: entry.label.as_deref().unwrap_or_default().to_owned(),
                peer: match entry.scope {
                    Scope::World => None,
                    Scope::To(rank) | Scope::From(rank) => Some(rank),
                },
                state: entry.state,
                started: (entry.started - self.begun).as_secs_f64(),
                seconds: took.as_secs_f64(),
            }
        };
        self.entries().iter().map(record).collect()
    }
}
