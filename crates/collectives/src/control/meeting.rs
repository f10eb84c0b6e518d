//! The ranks that a rank waits for in the rendezvous, for programs that show them.

use std::sync::{Mutex, PoisonError};

use crate::error::rank_list;

/// A phase of the rendezvous in which a rank waits for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MeetingPhase {
    /// Rank 0 waits for these ranks.
    Missing(Vec<usize>),
    /// Another rank looks for rank 0.
    Search,
    /// This rank is registered. Rank 0 knows who is missing.
    Registered,
}

/// The phase of a rank's rendezvous, shared with the thread that reports it.
#[derive(Debug, Default)]
pub(crate) struct MeetingProgress(Mutex<Option<MeetingPhase>>);

impl MeetingProgress {
    /// Sets the phase.
    pub(crate) fn set(&self, phase: MeetingPhase) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
    }

    /// Describes the wait in a world of `world_size` ranks, `each` on a host, that meet at an address; `None` if rank 0 is the one to
    /// tell.
    pub(crate) fn describe(&self, at: &str, world_size: usize, each: usize) -> Option<String> {
        let phase = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        match phase {
            MeetingPhase::Missing(missing) => {
                let nodes = nodes(&missing, world_size, each);
                Some(format!("waits for {} of {world_size}{nodes} at {at}", rank_list(&missing)))
            }
            MeetingPhase::Search => Some(format!("waits for rank 0 at {at}")),
            MeetingPhase::Registered => None,
        }
    }
}

/// Names the hosts whose ranks are all missing, if each host has the same number of ranks, several.
fn nodes(missing: &[usize], all: usize, each: usize) -> String {
    if each < 2 || each >= all || !all.is_multiple_of(each) {
        return String::new();
    }
    let is_missing = |node: &usize| (node * each..(node + 1) * each).all(|rank| missing.contains(&rank));
    let nodes: Vec<String> = (0..all / each).filter(is_missing).map(|node| node.to_string()).collect();
    match nodes.as_slice() {
        [] => String::new(),
        [one] => format!(" (all of node {one})"),
        several => format!(" (all of nodes {})", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_with_their_nodes() {
        let describe = |phase: MeetingPhase, local_world_size: usize| {
            let progress = MeetingProgress::default();
            progress.set(phase);
            progress.describe("127.0.0.1:7", 6, local_world_size)
        };
        let missing = |ranks: &[usize], each| {
            describe(MeetingPhase::Missing(ranks.to_vec()), each).expect("rank 0 tells")
        };
        assert_eq!(missing(&[5], 6), "waits for rank 5 of 6 at 127.0.0.1:7");
        assert_eq!(missing(&[1, 2, 3], 2), "waits for ranks 1, 2 and 3 of 6 (all of node 1) at 127.0.0.1:7");
        assert_eq!(
            missing(&[2, 3, 4, 5], 2),
            "waits for ranks 2, 3, 4 and 5 of 6 (all of nodes 1, 2) at 127.0.0.1:7"
        );
        assert_eq!(missing(&[2, 3], 4), "waits for ranks 2 and 3 of 6 at 127.0.0.1:7");
        assert_eq!(describe(MeetingPhase::Registered, 1), None);
        assert!(MeetingProgress::default().describe("127.0.0.1:7", 6, 1).is_none());
    }
}
