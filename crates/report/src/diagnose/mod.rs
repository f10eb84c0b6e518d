//! The diagnosis of a run that failed or hung, from the records of its ranks: which rank waited for which in which
//! operation, the first difference between ranks, and the stacks of the ranks that others waited for.
//!
//! Each rank leaves a [`FlightRecord`] in the run's folder of logs, and why it failed ([`FailureReport`]). [`Diagnosis::of`] reads
//! them; [`Diagnosis::text`] tells what follows.

mod operations;
mod stacks;
mod suspects;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use phalanx_collectives::{FlightRecord, OperationState, PeerRecord};
use serde::Serialize;

pub use operations::{Different, FirstDifference, Wait};
pub use stacks::{Frame, ThreadFrames};
pub use suspects::Suspect;

use phalanx_run::FailureReport;

/// Why a run cannot be diagnosed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiagnoseError {
    /// No rank has left a record.
    #[error(
        "no rank has left a record in {}: the run has not failed, or before its ranks had met; records are left by runs of several processes", logs.display()
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
        /// Why not.
        source: std::io::Error,
    },
}

/// The actions of a run's ranks at its failure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The number of ranks.
    pub world_size: usize,
    /// Why the world broke, as the first rank to write has it.
    pub cause: String,
    /// The suspects, the clearest first.
    pub suspects: Vec<Suspect>,
    /// The first operation at which ranks did different things.
    pub first_difference: Option<FirstDifference>,
    /// The waits of ranks for others.
    pub waits: Vec<Wait>,
    /// Each rank.
    pub ranks: Vec<RankState>,
}

/// The state of a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankState {
    /// The rank.
    pub rank: usize,
    /// Its machine, if it has left a record.
    pub host: Option<String>,
    /// Its process, if recorded.
    pub process: Option<u32>,
    /// True if it has left a record itself.
    pub has_record: bool,
    /// Its state as seen by others of its host, such as `stopped`.
    pub seen: Option<String>,
    /// The states of its threads as seen by others, if it has left no record: names and states.
    pub seen_threads: Vec<(String, String)>,
    /// Why it failed, if it has said so.
    pub failure: Option<String>,
    /// Its last operation, in words.
    pub last_operation: Option<String>,
    /// Seconds from the end of that to when the record was written; 0 while it is under way.
    pub idle_seconds: Option<f64>,
    /// Where its threads were, if something hung or disagreed.
    pub threads: Vec<ThreadFrames>,
}

impl Diagnosis {
    /// Puts together what the ranks of a run have left in its folder of logs.
    ///
    /// # Errors
    /// [`DiagnoseError`].
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

/// The records of all ranks that have left one, by rank.
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

/// Returns the state of a rank, from its own record and those of others.
fn state(
    rank: usize,
    logs: &Path,
    (own, seen): (Option<&FlightRecord>, &[&PeerRecord]),
    symbols: &mut stacks::Symbols,
) -> RankState {
    // A stopped process is informative; a sleeping or running one is not.
    let is_odd = |state: &str| ["stopped", "traced", "waits for a disk", "ended"].contains(&state);
    let told = seen.iter().find(|peer| is_odd(&peer.state)).or(seen.first());
    let failure = FailureReport::read(logs, rank);
    let last = own.and_then(|own| own.operations.last());
    RankState {
        rank,
        host: own.map(|own| own.host.clone()),
        process: own.map(|own| own.process).or(told.map(|peer| peer.process)),
        has_record: own.is_some(),
        seen: told.map(|peer| peer.state.clone()),
        seen_threads: told.filter(|_| own.is_none()).map_or_else(Vec::new, |peer| {
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
