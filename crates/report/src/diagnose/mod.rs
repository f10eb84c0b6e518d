//! The diagnosis of a run that failed or hung, from the records of its ranks: which rank waited for which in which
//! operation, the first difference between ranks, and the stacks of the ranks that others waited for.
//!
//! Each rank writes a [`FlightRecord`] and a [`FailureReport`] to the run's folder of logs. [`Diagnosis::of`] reads
//! them; [`Diagnosis::text`] formats the result.

mod operations;
mod stacks;
mod suspects;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use phalanx_collectives::{FlightRecord, OperationState, PeerRecord};
use serde::Serialize;

pub use operations::{FirstDifference, IssuedOperation, Wait};
pub use stacks::{Frame, ThreadFrames};
pub use suspects::Suspect;

use phalanx_run::FailureReport;

/// The error of diagnosing a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiagnoseError {
    /// No rank has left a record.
    #[error(
        "no rank has left a record in {}: the run did not fail, failed before the rendezvous, or has a single process", logs.display()
    )]
    Nothing {
        /// The folder of logs.
        logs: PathBuf,
    },
    /// A record cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
}

/// The diagnosis of a run: the state of its ranks at the failure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The number of ranks.
    pub world_size: usize,
    /// The cause of the failure, from the first record.
    pub cause: String,
    /// The suspects, the strongest evidence first.
    pub suspects: Vec<Suspect>,
    /// The first operation in which ranks differ.
    pub first_difference: Option<FirstDifference>,
    /// The waits of ranks for others.
    pub waits: Vec<Wait>,
    /// The state of each rank.
    pub ranks: Vec<RankState>,
}

/// The state of a rank at the failure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankState {
    /// The rank.
    pub rank: usize,
    /// Its host, if recorded.
    pub host: Option<String>,
    /// Its process id, if recorded.
    pub process: Option<u32>,
    /// True if it has written a record.
    pub has_record: bool,
    /// Its process state as seen by other ranks on its host, such as `stopped`.
    pub seen: Option<String>,
    /// The names and states of its threads as seen by other ranks, if it has written no record.
    pub seen_threads: Vec<(String, String)>,
    /// Its failure, if reported.
    pub failure: Option<String>,
    /// A description of its last operation.
    pub last_operation: Option<String>,
    /// The seconds from the end of that operation to the record; 0 if it was still running.
    pub idle_seconds: Option<f64>,
    /// The stacks of its threads, after a hang or a disagreement.
    pub threads: Vec<ThreadFrames>,
}

impl Diagnosis {
    /// Diagnoses a run from the records in its folder of logs.
    ///
    /// # Errors
    /// [`DiagnoseError`] if there are no records, or one cannot be read.
    pub fn of(logs: &Path) -> Result<Self, DiagnoseError> {
        let records = read(logs)?;
        let Some(first) = records.iter().min_by_key(|record| record.time_ms) else {
            return Err(DiagnoseError::Nothing { logs: logs.to_owned() });
        };
        let (world_size, cause) = (first.world_size, first.cause.clone());
        let waits = operations::waits(&records);
        let first_difference = operations::first_difference(&records);
        let mut symbols = stacks::Symbols::default();
        let own: BTreeMap<usize, &FlightRecord> =
            records.iter().map(|record| (record.rank, record)).collect();
        let mut seen: BTreeMap<usize, Vec<&PeerRecord>> = BTreeMap::new();
        for peer in records.iter().flat_map(|record| &record.peers) {
            seen.entry(peer.rank).or_default().push(peer);
        }
        let state = |rank: usize| {
            let seen = seen.get(&rank).map_or(&[][..], Vec::as_slice);
            state(rank, logs, (own.get(&rank).copied(), seen), &mut symbols)
        };
        let ranks: Vec<RankState> = (0..world_size).map(state).collect();
        let suspects = suspects::suspects(&ranks, &waits, first_difference.as_ref(), first.named);
        Ok(Self { world_size, cause, suspects, first_difference, waits, ranks })
    }
}

/// Reads all records, sorted by rank.
fn read(logs: &Path) -> Result<Vec<FlightRecord>, DiagnoseError> {
    let wrong = |path: &Path, source| DiagnoseError::Read { path: path.to_owned(), source };
    let mut records = Vec::new();
    for entry in std::fs::read_dir(logs).map_err(|source| wrong(logs, source))?.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("rank-") && name.ends_with(".flight.json") {
            let path = entry.path();
            records.push(FlightRecord::read(&path).map_err(|source| wrong(&path, source))?);
        }
    }
    records.sort_by_key(|record| record.rank);
    Ok(records)
}

/// Returns the state of a rank, from its own record and the records of other ranks.
fn state(
    rank: usize,
    logs: &Path,
    (own, seen): (Option<&FlightRecord>, &[&PeerRecord]),
    symbols: &mut stacks::Symbols,
) -> RankState {
    // A stopped process is informative; a sleeping or running one is not.
    let is_odd = |state: &str| ["stopped", "traced", "waits for a disk", "ended"].contains(&state);
    let peer = seen.iter().find(|peer| is_odd(&peer.state)).or(seen.first());
    let failure = FailureReport::read(logs, rank);
    let last = own.and_then(|own| own.operations.last());
    RankState {
        rank,
        host: own.map(|own| own.host.clone()),
        process: own.map(|own| own.process).or(peer.map(|peer| peer.process)),
        has_record: own.is_some(),
        seen: peer.map(|peer| peer.state.clone()),
        seen_threads: peer.filter(|_| own.is_none()).map_or_else(Vec::new, |peer| {
            peer.threads.iter().map(|thread| (thread.name.clone(), thread.state.clone())).collect()
        }),
        failure: failure.filter(|report| !report.consequence).map(|report| report.message),
        last_operation: last.map(|last| match last.state {
            OperationState::Done => operations::in_words(last),
            OperationState::Running | OperationState::Failed => {
                format!("{}, not done", operations::in_words(last))
            }
        }),
        idle_seconds: last.map(|last| operations::idle(last, own)),
        threads: own.and_then(|own| own.stacks.as_ref()).map_or_else(Vec::new, |stacks| symbols.name(stacks)),
    }
}
