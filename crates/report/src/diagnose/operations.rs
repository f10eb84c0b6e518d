//! Compares the operations of ranks: the first difference, and the missing ranks of each operation.

use std::collections::BTreeMap;

use phalanx_collectives::{FlightRecord, OperationRecord, OperationState};
use serde::Serialize;

/// An operation in which ranks wait for others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Wait {
    /// A description of the operation: name, number, size and label.
    pub operation: String,
    /// The ranks of its communicator.
    pub among: Vec<usize>,
    /// The ranks that have issued it.
    pub waiting: Vec<usize>,
    /// The ranks that have not issued it.
    pub missing: Vec<usize>,
    /// The longest waiting time in seconds.
    pub seconds: f64,
}

/// The first operation in which ranks differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FirstDifference {
    /// Its sequence number in its communicator.
    pub sequence: u64,
    /// The ranks of the communicator.
    pub among: Vec<usize>,
    /// The issued operations, the most common first.
    pub issued: Vec<IssuedOperation>,
}

/// An operation, and the ranks that have issued it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IssuedOperation {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// A description of the operation.
    pub operation: String,
}

/// Formats an operation.
pub(super) fn in_words(operation: &OperationRecord) -> String {
    let OperationRecord { operation: name, sequence, bytes, dtype, label, peer, .. } = operation;
    let size = if *bytes > 0 { format!(" of {bytes} bytes of {dtype}") } else { String::new() };
    let peer = peer.map_or_else(String::new, |peer| format!(" with rank {peer}"));
    let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
    format!("{name} #{sequence}{size}{peer}{label}")
}

/// Returns the seconds from the end of a rank's last operation to its record.
pub(super) fn idle(last: &OperationRecord, record: Option<&FlightRecord>) -> f64 {
    match (last.state, record) {
        (OperationState::Done, Some(record)) => (record.seconds - (last.started + last.seconds)).max(0.0),
        _ => 0.0,
    }
}

/// Collective operations by communicator (its number and ranks) and rank.
type ByCommunicator<'a> = BTreeMap<(u32, &'a [usize]), BTreeMap<usize, Vec<&'a OperationRecord>>>;

fn by_communicator(records: &[FlightRecord]) -> ByCommunicator<'_> {
    let mut all = ByCommunicator::new();
    for record in records {
        for (number, members) in &record.communicators {
            let own = record.operations.iter();
            let own = own.filter(|one| one.communicator == *number && one.peer.is_none()).collect();
            all.entry((*number, members.as_slice())).or_default().insert(record.rank, own);
        }
    }
    all
}

/// Returns the properties that must be equal on all ranks.
fn identity(operation: &OperationRecord) -> (&str, u64, &str) {
    (&operation.operation, operation.bytes, &operation.dtype)
}

/// Finds the earliest operation in which ranks differ.
pub(super) fn first_difference(records: &[FlightRecord]) -> Option<FirstDifference> {
    let mut found: Option<(f64, FirstDifference)> = None;
    for ((_, members), ranks) in by_communicator(records) {
        let mut numbers: BTreeMap<u64, Vec<(usize, &OperationRecord)>> = BTreeMap::new();
        for (rank, operations) in &ranks {
            for one in operations {
                numbers.entry(one.sequence).or_default().push((*rank, one));
            }
        }
        for (sequence, issued) in numbers {
            if issued.iter().all(|(_, one)| identity(one) == identity(issued[0].1)) {
                continue;
            }
            let began = issued.iter().map(|(_, one)| one.started).fold(f64::INFINITY, f64::min);
            let mut groups: BTreeMap<_, IssuedOperation> = BTreeMap::new();
            for (rank, one) in issued {
                let group = groups.entry(identity(one));
                let group =
                    group.or_insert_with(|| IssuedOperation { ranks: Vec::new(), operation: in_words(one) });
                group.ranks.push(rank);
            }
            let mut issued: Vec<IssuedOperation> = groups.into_values().collect();
            issued.sort_by_key(|operation| (usize::MAX - operation.ranks.len(), operation.ranks.clone()));
            if found.as_ref().is_none_or(|(earlier, _)| began < *earlier) {
                found = Some((began, FirstDifference { sequence, among: members.to_vec(), issued }));
            }
            break;
        }
    }
    found.map(|(_, found)| found)
}

/// Returns the waits of ranks for others, the longest first.
pub(super) fn waits(records: &[FlightRecord]) -> Vec<Wait> {
    let mut waits = Vec::new();
    for ((_, members), ranks) in by_communicator(records) {
        let last = |rank: &usize| ranks.get(rank).and_then(|own| own.last().copied());
        let Some(newest) = members.iter().filter_map(|rank| Some(last(rank)?.sequence)).max() else {
            continue;
        };
        let here = |rank: &usize| last(rank).filter(|one| one.sequence == newest);
        let (waiting, missing): (Vec<usize>, Vec<usize>) =
            members.iter().partition(|rank| here(rank).is_some());
        let open = |rank: &usize| here(rank).filter(|one| one.state != OperationState::Done);
        let Some(first) = waiting.iter().find_map(open) else { continue };
        let seconds = waiting.iter().filter_map(open).map(|one| one.seconds).fold(0.0, f64::max);
        let among = members.to_vec();
        waits.push(Wait { operation: in_words(first), among, waiting, missing, seconds });
    }
    for record in records {
        let open = record.operations.iter().filter(|one| one.state != OperationState::Done);
        for one in open {
            let Some(peer) = one.peer else { continue };
            let members = record.communicators.iter().find(|(number, _)| *number == one.communicator);
            let Some((_, members)) = members else { continue };
            let missing = members.get(peer).copied().into_iter().collect();
            let (operation, waiting) = (in_words(one), vec![record.rank]);
            waits.push(Wait { operation, among: members.clone(), waiting, missing, seconds: one.seconds });
        }
    }
    waits.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    waits
}
