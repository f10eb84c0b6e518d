//! The state that ranks of a new world send each other.

use std::sync::Arc;

use super::status::{CommonStep, RankStatus};
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use phalanx_checkpoint::{PieceSource, SnapshotPiece, StateSnapshot, bytes_of};

/// Upper limit of a message, in bytes. Consecutive pieces of one rank share a message.
const MESSAGE: usize = 16 << 20;

/// The state after the step that all ranks continue from.
pub(in crate::engine::train_loop) struct GatheredState {
    pub(in crate::engine::train_loop) snapshot: StateSnapshot,
    /// Bytes that ranks sent each other.
    pub(in crate::engine::train_loop) bytes: u64,
}

/// Gathers the state after the common step in the memory of each rank. All ranks call this together with the same statuses.
pub(in crate::engine::train_loop) fn gather_state(
    distributed: &Distributed,
    own: &[StateSnapshot],
    all: &[RankStatus],
    common: &CommonStep,
) -> Result<GatheredState, TrainError> {
    let state = all.iter().find_map(|status| status.version(common.step));
    let state = state.map(|version| version.state.clone()).unwrap_or_default();
    let own = own.iter().find(|own| own.step == common.step);
    let pieces_of = |rank: usize| all[rank].version(common.step).map_or(&[][..], |version| &version.pieces);
    let Some(sent) = &common.sent else {
        let pieces = own.map(|own| own.pieces.clone()).unwrap_or_default();
        return Ok(GatheredState { snapshot: StateSnapshot { step: common.step, state, pieces }, bytes: 0 });
    };
    let (mut pieces, mut sent_bytes) = (Vec::with_capacity(sent.len()), 0);
    let size = |chosen: &PieceSource| bytes_of(&pieces_of(chosen.rank)[chosen.at]);
    let mut rest = sent.as_slice();
    while let [first, ..] = rest {
        let (mut count, mut bytes) = (0, 0);
        for chosen in rest.iter().take_while(|chosen| chosen.rank == first.rank) {
            let more = size(chosen)?;
            if count > 0 && bytes + more > MESSAGE {
                break;
            }
            (count, bytes) = (count + 1, bytes + more);
        }
        let (together, later) = rest.split_at(count);
        rest = later;
        let mut message = Vec::with_capacity(bytes);
        if let Some(own) = own.filter(|_| distributed.rank() == first.rank) {
            together.iter().for_each(|chosen| message.extend_from_slice(&own.pieces[chosen.at].bytes));
        }
        message.resize(bytes, 0);
        distributed.exchange().broadcast_bytes(&mut message, first.rank)?;
        sent_bytes += bytes as u64;
        let mut from = 0;
        for chosen in together {
            let to = from + size(chosen)?;
            let piece = pieces_of(chosen.rank)[chosen.at].clone();
            pieces.push(SnapshotPiece { piece, bytes: Arc::new(message[from..to].to_vec()) });
            from = to;
        }
    }
    Ok(GatheredState { snapshot: StateSnapshot { step: common.step, state, pieces }, bytes: sent_bytes })
}
