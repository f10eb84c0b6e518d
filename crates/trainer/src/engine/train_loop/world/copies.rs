//! Copies of shards in memory: this rank's after its last steps, and those of the rank before it. A step is finished once they are made:
//! from then on any rank can be lost. Gemini (Wang et al. 2023) keeps checkpoints in the memory of neighbours in the same way.
//!
//! While copies are sent, ranks may have different steps. They keep the last two, of which the older one is complete.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use phalanx_checkpoint::{Piece, SnapshotPiece, StateSnapshot, bytes_of};

/// The number of steps that have copies.
const KEPT: usize = 2;

/// The copies of a rank.
#[derive(Debug, Default)]
pub(super) struct Copies {
    own: VecDeque<StateSnapshot>,
    neighbours: VecDeque<StateSnapshot>,
    /// The pieces of the neighbour's copies. They change after the first step, when optimizers have state.
    layout: Vec<Piece>,
    /// The pieces that the next rank knows.
    sent_layout: Vec<Piece>,
}

impl Copies {
    /// Removes all copies.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// True if the state after a step is copied.
    pub(super) fn has(&self, step: u64) -> bool {
        self.own.back().is_some_and(|snapshot| snapshot.step == step)
    }

    /// Bytes of all copies.
    pub(super) fn bytes(&self) -> u64 {
        self.own.iter().chain(&self.neighbours).map(|snapshot| snapshot.bytes() as u64).sum()
    }

    /// Adds a copy of this rank's state.
    pub(super) fn keep(&mut self, snapshot: StateSnapshot) {
        push(&mut self.own, snapshot);
    }

    /// Sends the last copy to the next rank and receives that of the previous rank. All ranks call this together.
    pub(super) fn exchange(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        let Some(own) = self.own.back().filter(|_| distributed.size() > 1) else { return Ok(()) };
        let garbled = |error: serde_json::Error| {
            TrainError::Setup(format!("malformed description of a neighbour's shard: {error}"))
        };
        let pieces = || own.pieces.iter().map(|piece| &piece.piece);
        let new: Vec<&Piece> = if pieces().eq(&self.sent_layout) { Vec::new() } else { pieces().collect() };
        let head = serde_json::to_vec(&(own.step, &own.state, &new)).map_err(garbled)?;
        let head = distributed.exchange().pass_on(&head)?;
        let (step, state, pieces): (u64, Map<String, Value>, Vec<Piece>) =
            serde_json::from_slice(&head).map_err(garbled)?;
        let mut bytes = Vec::with_capacity(own.bytes());
        own.pieces.iter().for_each(|piece| bytes.extend_from_slice(&piece.bytes));
        let bytes = distributed.exchange().pass_on(&bytes)?;
        if !new.is_empty() {
            self.sent_layout = new.into_iter().cloned().collect();
        }
        if !pieces.is_empty() {
            self.layout = pieces;
        }
        let (mut pieces, mut from) = (Vec::with_capacity(self.layout.len()), 0);
        for piece in &self.layout {
            let to = from + bytes_of(piece)?;
            let part = bytes.get(from..to).ok_or_else(|| {
                TrainError::Setup(format!("a neighbour's shard is truncated after {} bytes", bytes.len()))
            })?;
            pieces.push(SnapshotPiece { piece: piece.clone(), bytes: Arc::new(part.to_vec()) });
            from = to;
        }
        push(&mut self.neighbours, StateSnapshot { step, state, pieces });
        Ok(())
    }

    /// The copies of each step, the newest first: this rank's and its neighbour's.
    pub(super) fn versions(&self) -> Vec<StateSnapshot> {
        let both = |own: &StateSnapshot| {
            let mut all = own.clone();
            let other = self.neighbours.iter().filter(|other| other.step == own.step);
            all.pieces.extend(other.flat_map(|other| other.pieces.iter().cloned()));
            all
        };
        self.own.iter().rev().map(both).collect()
    }
}

fn push(kept: &mut VecDeque<StateSnapshot>, snapshot: StateSnapshot) {
    kept.retain(|other| other.step != snapshot.step);
    kept.push_back(snapshot);
    while kept.len() > KEPT {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;
    use phalanx_checkpoint::{MODEL, Region};

    fn snapshot(step: u64, rank: usize) -> StateSnapshot {
        let piece = Piece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            dtype: "u8".to_owned(),
            shape: vec![9],
            region: Region::from(3 * rank..3 * rank + 3),
            file: String::new(),
            key: "w".to_owned(),
        };
        let bytes = Arc::new(vec![step as u8, rank as u8, 7]);
        StateSnapshot { step, pieces: vec![SnapshotPiece { piece, bytes }], ..StateSnapshot::default() }
    }

    #[test]
    fn each_rank_has_its_neighbours_last_two_steps() {
        let ranks = threads(3).expect("threads").into_iter().map(|communicator| {
            std::thread::spawn(move || {
                let distributed = Distributed::among(communicator).expect("threads have a control plane");
                let (rank, mut copies) = (distributed.rank(), Copies::default());
                for step in 4..8 {
                    copies.keep(snapshot(step, rank));
                    assert!(copies.has(step) && !copies.has(step + 1));
                    // In the last step the world breaks before copies are sent.
                    if step < 7 {
                        copies.exchange(&distributed).expect("all are here");
                    }
                }
                let versions = copies.versions();
                assert_eq!(versions[0], snapshot(7, rank));
                let mut both = snapshot(6, rank);
                both.pieces.extend(snapshot(6, (rank + 2) % 3).pieces);
                assert_eq!(versions[1], both);
                assert_eq!((versions.len(), copies.bytes()), (2, 12));
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            rank.join().expect("no panic");
        }
    }
}
