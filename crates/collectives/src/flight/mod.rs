//! The flight record of a rank, written when its world breaks: its last operations, the states of the other ranks' processes on its
//! host, and, if ranks hang or disagree, the stacks of its threads.
//!
//! A separate thread writes it as soon as this rank learns that the world is broken. So a rank that computes, reads
//! data or sleeps leaves its record too. A stopped process cannot; the other ranks of its host record that.

mod stacks;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use stacks::{MappedFile, Stacks, ThreadStack};

use crate::control::{MOST_RANKS, Process, ProcessSnapshot, RankState};
use crate::failure::{Cause, Failure};
use crate::recorder::{OperationRecord, Recorder};

/// The record of a rank whose world broke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub process: u32,
    /// The time of writing, in milliseconds since 1970.
    pub time_ms: u64,
    /// The time of writing, in seconds since this rank's world began, like the times of operations.
    pub seconds: f64,
    /// The reason why the world is broken, if this rank knows it.
    pub cause: String,
    /// The rank that is lost or gave up, if it is known.
    pub named: Option<usize>,
    /// The ranks of each of its communicators, by the communicator's number.
    pub communicators: Vec<(u32, Vec<usize>)>,
    /// Its last operations, the oldest first.
    pub operations: Vec<OperationRecord>,
    /// The other ranks of its host with running processes.
    pub peers: Vec<PeerRecord>,
    /// The stacks of its threads, if ranks hang or disagree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Stacks>,
}

/// The state of another rank's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// The rank.
    pub rank: usize,
    /// Its process.
    pub process: u32,
    /// Its state: `runs`, `sleeps`, `stopped` (by a signal), `waits for a disk`, `traced`, `ended`.
    pub state: String,
    /// The states of its threads.
    pub threads: Vec<ThreadRecord>,
}

/// The state of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRecord {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its state, as in [`PeerRecord::state`].
    pub state: String,
}

/// Names the state letters of proc_pid_stat(5).
fn in_words(state: char) -> String {
    match state {
        'R' => "runs",
        'S' | 'I' => "sleeps",
        'T' => "stopped",
        't' => "traced",
        'D' => "waits for a disk",
        'Z' | 'X' | 'x' => "ended",
        _ => "does something unknown",
    }
    .to_owned()
}

impl PeerRecord {
    fn new(rank: usize, look: ProcessSnapshot) -> Self {
        let thread = |(id, name, state)| ThreadRecord { id, name, state: in_words(state) };
        let threads = look.threads.into_iter().map(thread).collect();
        Self { rank, process: look.id, state: in_words(look.state), threads }
    }
}

impl FlightRecord {
    /// Returns the path of a rank's record.
    pub fn path(folder: &Path, rank: usize) -> PathBuf {
        folder.join(format!("rank-{rank}.flight.json"))
    }

    /// Reads the record of a rank.
    ///
    /// # Errors
    /// If the record is missing or malformed.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let record: Self = serde_json::from_slice(&std::fs::read(path)?)?;
        let Self { rank, world_size, .. } = record;
        if rank >= world_size || world_size > MOST_RANKS {
            let problem =
                format!("rank {rank} of {world_size} ranks; there can be {MOST_RANKS}, counted from 0");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, problem));
        }
        Ok(record)
    }

    /// Writes the record atomically.
    fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let aside = folder.join(format!(".rank-{}.flight.json", self.rank));
        std::fs::write(&aside, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(aside, Self::path(folder, self.rank))
    }
}

/// Returns the host name of this machine.
fn host_name() -> String {
    let known =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    known.map_or_else(|| "this host".to_owned(), |name| name.trim().to_owned())
}

/// The writers of this process's worlds.
static WRITERS: Mutex<Vec<Weak<FlightWriter>>> = Mutex::new(Vec::new());

fn register(writer: &Arc<FlightWriter>) {
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    writers.retain(|writer| writer.strong_count() > 0);
    writers.push(Arc::downgrade(writer));
}

/// Writes the flight records of this process's worlds that are not written yet, for a process that is about to end because of an
/// error. Returns when they are written, or after `at_most`.
pub fn write_flight_records(at_most: Duration) {
    let writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let writers: Vec<_> = writers.iter().filter_map(Weak::upgrade).collect();
    if writers.is_empty() {
        return;
    }
    let (done, is_done) = crossbeam_channel::bounded::<()>(0);
    // The caller may hold a lock that the record needs, if it is panicking.
    let write = move || {
        writers.iter().for_each(|writer| writer.write());
        drop(done);
    };
    if std::thread::Builder::new().name("phalanx-flight".into()).spawn(write).is_ok() {
        let _ = is_done.recv_timeout(at_most);
    }
}

/// Writes the record of a rank, once.
pub(crate) struct FlightWriter {
    folder: PathBuf,
    rank: usize,
    /// The unique name of this machine.
    machine: String,
    /// The processes of all ranks.
    processes: Vec<Process>,
    failure: Arc<Failure>,
    recorder: Arc<Recorder>,
    written: Mutex<bool>,
}

impl FlightWriter {
    /// Registers the writer for the end of this rank's world, with records in `folder`.
    pub(crate) fn of(
        folder: PathBuf,
        (rank, machine): (usize, String),
        processes: Vec<Process>,
        watched: &RankState,
    ) -> Arc<Self> {
        let RankState { failure, recorder, .. } = watched.clone();
        let writer = Self { folder, rank, machine, processes, failure, recorder, written: Mutex::default() };
        let writer = Arc::new(writer);
        register(&writer);
        let waiting: Weak<Self> = Arc::downgrade(&writer);
        watched.failure.on_break(move || {
            // The thread that found the failure is busy, and holds the lock of the state that is read here.
            if let Some(writer) = waiting.upgrade() {
                let name = format!("phalanx-flight-{}", writer.rank);
                let started = std::thread::Builder::new().name(name).spawn(move || writer.write());
                drop(started);
            }
        });
        writer
    }

    /// Writes the record, or waits until another thread has written it.
    pub(crate) fn write(&self) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written {
            return;
        }
        *written = true;
        let cause = self.failure.get();
        let mut record = self.record(cause.as_ref());
        let mut outcome = record.write(&self.folder);
        // A lost rank needs no explanation, and ranks that go on without it are not disturbed.
        if matches!(cause, Some(Cause::Aborted(..))) {
            record.stacks = stacks::collect();
            outcome = outcome.and_then(|()| record.write(&self.folder));
        }
        let path = FlightRecord::path(&self.folder, self.rank);
        match outcome {
            Ok(()) => tracing::error!(path = %path.display(), "wrote what this rank did last"),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot write what this rank did last");
            }
        }
    }

    fn record(&self, cause: Option<&Cause>) -> FlightRecord {
        let named = cause.map(|cause| match cause {
            Cause::Lost(rank) | Cause::Aborted(rank, _) => *rank,
        });
        let peers = self.processes.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let peers =
            peers.filter_map(|(rank, process)| Some(PeerRecord::new(rank, process.snapshot(&self.machine)?)));
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        FlightRecord {
            rank: self.rank,
            world_size: self.processes.len(),
            host: host_name(),
            process: std::process::id(),
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            seconds: self.recorder.seconds(),
            cause: cause.map_or_else(|| "an operation failed here".to_owned(), ToString::to_string),
            named,
            communicators: self.recorder.members().into_iter().collect(),
            operations: self.recorder.recent(),
            peers: peers.collect(),
            stacks: None,
        }
    }
}
