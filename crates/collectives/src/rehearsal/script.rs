//! The messages of a rank in an operation, recorded from the algorithm itself without moving a byte.

use std::ops::Range;

use crate::algorithms::{
    Exchange, Group, Hosts, Messages, ReceiveMode, grid, halving, hierarchical, push_pull, ring, single, tree,
};
use crate::dtype::{Element, ReduceOp};
use crate::error::Result;
use crate::operation::{Algorithm, Kind};
use crate::partition::pieces;
use crate::reduce::Reduction;

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// Send a message without waiting for the receiver.
    Send {
        /// The receiver.
        to: usize,
        /// Its length.
        bytes: usize,
    },
    /// Wait for a message.
    Receive {
        /// The sender.
        from: usize,
        /// Its length.
        bytes: usize,
        /// True if the message is reduced into the buffer.
        reduces: bool,
    },
}

/// Records the steps that an algorithm asks of a rank.
struct Recorder<'a> {
    rank: usize,
    hosts: &'a [usize],
    moves: Vec<Move>,
    scratch: Vec<u64>,
}

impl Messages for Recorder<'_> {
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.moves.push(Move::Send { to, bytes: bytes.len() });
        Ok(())
    }

    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        self.moves.push(Move::Receive { from, bytes: into.len(), reduces: false });
        Ok(())
    }
}

impl Exchange for Recorder<'_> {
    /// Operations whose lengths only senders know are not recorded.
    fn receive_any(&mut self, _: usize, _: usize) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn scratch(&mut self) -> &mut Vec<u64> {
        &mut self.scratch
    }

    fn take<T: Element>(&mut self, values: &mut [T], from: usize, take: ReceiveMode) -> Result<()> {
        let reduces = matches!(take, ReceiveMode::Reduce(_));
        self.moves.push(Move::Receive { from, bytes: size_of_val(values), reduces });
        Ok(())
    }
}

/// Over simulated links, ranks of a host share no memory.
impl Hosts for Recorder<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn hosts(&self) -> &[usize] {
        self.hosts
    }
}

/// Returns the steps of `rank` in an operation over `bytes` bytes of f32 among ranks on these hosts, the first of which is the
/// root. `None` if the algorithm does not have the operation, or sends no messages. The bytes of a scatter are those of all parts.
pub(super) fn record(
    kind: Kind,
    algorithm: Algorithm,
    bytes: usize,
    rank: usize,
    hosts: &[usize],
) -> Option<Vec<Move>> {
    if !algorithm.offers(kind) {
        return None;
    }
    let all = Group::world(hosts.len(), rank);
    let mut recorder = Recorder { rank, hosts, moves: Vec::new(), scratch: Vec::new() };
    let peers = &mut recorder;
    if kind == Kind::Scatter {
        scattered(peers, bytes / hosts.len().max(1));
        return Some(recorder.moves);
    }
    // No step writes to it, so the system need not provide pages.
    let mut values = vec![0.0_f32; bytes / size_of::<f32>()];
    let (values, reduction) = (&mut values[..], Reduction::new(ReduceOp::Sum, hosts.len()));
    let done = match (kind, algorithm) {
        (Kind::AllReduce, Algorithm::Ring) => ring::all_reduce(peers, &all, values, reduction),
        (Kind::AllReduce, Algorithm::Tree) => tree::all_reduce(peers, &all, values, reduction),
        (Kind::AllReduce, Algorithm::HalvingDoubling) => halving::all_reduce(peers, &all, values, reduction),
        (Kind::AllReduce, Algorithm::Hierarchical) => hierarchical::all_reduce(peers, values, reduction),
        (Kind::AllReduce, Algorithm::SingleReducer) => single::all_reduce(peers, &all, values, reduction),
        (Kind::AllReduce, Algorithm::PushPull) => push_pull::all_reduce(peers, &all, values, reduction),
        (Kind::AllReduce, Algorithm::Grid) => grid::all_reduce(peers, &all, values, reduction),
        (Kind::Reduce, Algorithm::Ring) => ring::reduce(peers, &all, values, reduction, 0),
        (Kind::Reduce, Algorithm::Tree) => tree::reduce(peers, &all, values, reduction, 0),
        (Kind::Reduce, Algorithm::SingleReducer) => single::reduce(peers, &all, values, reduction, 0),
        (Kind::Broadcast, Algorithm::Ring) => ring::broadcast(peers, &all, values, 0),
        (Kind::Broadcast, Algorithm::Tree) => tree::broadcast(peers, &all, values, 0),
        (Kind::Broadcast, Algorithm::Hierarchical) => hierarchical::broadcast(peers, values, 0),
        (Kind::Broadcast, Algorithm::SingleReducer) => single::broadcast(peers, &all, values, 0),
        (Kind::ReduceScatter, Algorithm::Ring) => ring::reduce_scatter(peers, &all, values, reduction),
        (Kind::ReduceScatter, Algorithm::HalvingDoubling) => {
            halving::reduce_scatter(peers, &all, values, reduction)
        }
        (Kind::ReduceScatter, Algorithm::PushPull) => {
            push_pull::reduce_scatter(peers, &all, values, reduction)
        }
        (Kind::AllGather, Algorithm::Ring) => ring::all_gather(peers, &all, values),
        (Kind::AllGather, Algorithm::HalvingDoubling) => halving::all_gather(peers, &all, values),
        (Kind::AllGather, Algorithm::PushPull) => push_pull::all_gather(peers, &all, values),
        _ => return None,
    };
    done.ok()?;
    Some(recorder.moves)
}

/// Records a scatter: the first rank sends each other its part, one after the other.
fn scattered(peers: &mut Recorder<'_>, part: usize) {
    let messages = |moves: &mut Vec<Move>, of: &dyn Fn(usize) -> Move| {
        moves.extend(pieces::<u8>(0..part).map(|piece: Range<usize>| of(piece.len())));
    };
    if peers.rank > 0 {
        messages(&mut peers.moves, &|bytes| Move::Receive { from: 0, bytes, reduces: false });
        return;
    }
    for to in 1..peers.hosts.len() {
        messages(&mut peers.moves, &|bytes| Move::Send { to, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that a script sends and receives.
    fn moved(moves: &[Move]) -> (usize, usize) {
        moves.iter().fold((0, 0), |(sent, received), next| match next {
            Move::Send { bytes, .. } => (sent + bytes, received),
            Move::Receive { bytes, .. } => (sent, received + bytes),
        })
    }

    #[test]
    fn scripts_are_what_algorithms_send() {
        let ring = record(Kind::AllReduce, Algorithm::Ring, 4000, 1, &[0; 4]).expect("a ring");
        assert_eq!((moved(&ring), ring.len()), ((6000, 6000), 12));
        let root = record(Kind::AllReduce, Algorithm::SingleReducer, 4000, 0, &[0; 4]).expect("one");
        assert_eq!(moved(&root), (12_000, 12_000));
        assert_eq!(root[0], Move::Receive { from: 1, bytes: 4000, reduces: true });
        assert_eq!(root[3], Move::Send { to: 1, bytes: 4000 });
        // On two hosts with two ranks: half of it between hosts, by a ring of two.
        let inside =
            record(Kind::AllReduce, Algorithm::Hierarchical, 4000, 0, &[0, 0, 1, 1]).expect("levels");
        let across: usize =
            inside.iter().map(|next| if let Move::Send { to: 2, bytes } = next { *bytes } else { 0 }).sum();
        assert_eq!(across, 2000);
        // Messages have the size of pieces.
        let long = record(Kind::Broadcast, Algorithm::SingleReducer, 1 << 20, 1, &[0; 2]).expect("one");
        assert_eq!(long.len(), 4);
        let scatter =
            |rank| record(Kind::Scatter, Algorithm::SingleReducer, 3000, rank, &[0; 3]).expect("one");
        assert_eq!((moved(&scatter(0)), moved(&scatter(2))), ((2000, 0), (0, 1000)));
        assert_eq!(record(Kind::AllReduce, Algorithm::Direct, 8, 0, &[0; 2]), None);
        assert_eq!(record(Kind::Gather, Algorithm::Tree, 8, 0, &[0; 2]), None);
    }
}
