//! The flight recorder: the last operations of this rank, told when something goes wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::operation::{Scope, Tag};

/// Operations that are kept.
const KEPT: usize = 64;

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// It has begun and not ended.
    Running,
    /// It ended well.
    Done,
    /// It ended with an error.
    Failed,
}

/// An operation as the flight recorder keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// Which communicator: 0 is the world, others have numbers that their ranks alone share.
    pub communicator: u32,
    /// The operation's number there; messages between two ranks are numbered for each pair and direction.
    pub sequence: u64,
    /// Its name, with the reduction.
    pub operation: String,
    /// Bytes of the buffer; 0 where ranks may differ.
    pub bytes: u64,
    /// The type of its elements.
    pub dtype: String,
    /// The way of its bytes.
    pub algorithm: String,
    /// What its caller says it is about, such as the bucket of gradients; empty where it says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Of messages between two ranks the other one, by its number in the communicator; none where all ranks take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// How far it has come.
    pub state: OperationState,
    /// Seconds since the world began when it started.
    pub started: f64,
    /// Seconds that it took; so far, if it is running.
    pub seconds: f64,
}

/// What a rank is doing, for another that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    /// The last collective operation that it has begun on the communicator in question.
    pub(crate) sequence: Option<u64>,
    /// The last thing that it began at all, in words.
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

    /// Says what the operation that was begun last on a communicator is about.
    pub(crate) fn label(&self, communicator: u32, label: &Arc<str>) {
        let mut entries = self.entries();
        if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.communicator == communicator) {
            entry.label = Some(label.clone());
        }
    }

    /// Says who is in a communicator.
    pub(crate) fn meet(&self, communicator: u32, members: &[usize]) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(communicator, members.to_vec());
    }

    /// Who is in each communicator.
    pub(crate) fn members(&self) -> BTreeMap<u32, Vec<usize>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn end(&self, communicator: u32, well: bool) {
        let mut entries = self.entries();
        let running =
            |entry: &&mut Entry| entry.communicator == communicator && entry.state == OperationState::Running;
        if let Some(entry) = entries.iter_mut().rev().find(running) {
            entry.state = if well { OperationState::Done } else { OperationState::Failed };
            entry.ended = Instant::now();
        }
    }

    /// What this rank is doing, as one that waits on a communicator wants to know.
    pub(crate) fn doing(&self, communicator: u32) -> Doing {
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
        Doing { sequence, last }
    }

    /// Seconds since the world began.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// All that is kept, the oldest first.
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
