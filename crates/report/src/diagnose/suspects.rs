//! The suspects: ranks that probably caused the failure.

use serde::Serialize;

use super::RankState;
use super::operations::{FirstDifference, Wait};
use super::stacks::where_it_was;

/// A rank that other ranks waited for, or that issued a different operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suspect {
    /// The rank.
    pub rank: usize,
    /// The evidence against it.
    pub because: String,
}

/// Returns the suspects, each rank once, the strongest evidence first. `named` is the rank that the others lost.
pub(super) fn suspects(
    ranks: &[RankState],
    waits: &[Wait],
    difference: Option<&FirstDifference>,
    named: Option<usize>,
) -> Vec<Suspect> {
    let mut found: Vec<Suspect> = Vec::new();
    let mut add = |rank: usize, because: String| {
        if !found.iter().any(|suspect| suspect.rank == rank) {
            found.push(Suspect { rank, because });
        }
    };
    for state in ranks {
        if let Some(seen) = state.seen.as_deref().filter(|seen| ["stopped", "traced"].contains(seen)) {
            let process = state.process.map_or_else(String::new, |process| format!(" (process {process})"));
            add(state.rank, format!("its process{process} is {seen}, as seen by other ranks on its host"));
        }
    }
    if let Some(FirstDifference { issued, sequence, .. }) = difference
        && let [most, others @ ..] = issued.as_slice()
    {
        let is_majority = others.iter().all(|other| other.ranks.len() < most.ranks.len());
        let odd = if is_majority { others } else { issued.as_slice() };
        for (rank, one) in odd.iter().flat_map(|one| one.ranks.iter().map(move |rank| (*rank, one))) {
            let others: Vec<String> = issued.iter().filter(|other| *other != one).map(description).collect();
            let others = others.join(", ");
            add(rank, format!("as operation {sequence} it issued {}, where {others}", one.operation));
        }
    }
    for wait in waits {
        for state in wait.missing.iter().filter_map(|rank| ranks.get(*rank)) {
            add(state.rank, absence(state, wait));
        }
    }
    let waited =
        |rank: usize| waits.iter().any(|wait| wait.waiting.contains(&rank) && !wait.missing.is_empty());
    for state in ranks.iter().filter(|state| !waited(state.rank)) {
        if let Some(failure) = &state.failure {
            add(state.rank, format!("it failed: {failure}"));
        } else if !state.has_record && named == Some(state.rank) {
            add(state.rank, "the other ranks lost it, and it has left no record".to_owned());
        }
    }
    found
}

/// Returns why a rank is missing in an operation.
fn absence(state: &RankState, wait: &Wait) -> String {
    match (state.has_record, &state.failure) {
        (_, Some(failure)) => format!("it failed: {failure}"),
        (true, None) => {
            let idle = state.idle_seconds.unwrap_or(0.0);
            let last = state.last_operation.as_deref().unwrap_or("none");
            let at = where_it_was(&state.threads).map_or_else(String::new, |at| format!("; it was in {at}"));
            format!(
                "it did not reach {}; {} waited {:.1} s for it; its last operation was {last}, {idle:.1} s before{at}",
                wait.operation,
                list(&wait.waiting),
                wait.seconds
            )
        }
        (false, None) => match state.seen.as_deref() {
            Some(seen) if seen != "ended" => {
                format!("it has left no record; its state as seen by other ranks on its host: {seen}")
            }
            _ => "it has left no record: it was killed, or its host is down or unreachable".to_owned(),
        },
    }
}

fn description(one: &super::IssuedOperation) -> String {
    format!("{} issued {}", list(&one.ranks), one.operation)
}

/// Formats a list of ranks.
pub(super) fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", numbers.join(", "))
}
