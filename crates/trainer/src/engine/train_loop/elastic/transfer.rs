//! What ranks of a new world give each other of the state.

use std::sync::Arc;

use super::standing::{Common, Standing};
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use phalanx_checkpoint::{Chosen, Held, HeldPiece, bytes_of};

/// Pieces of one rank that follow each other travel together up to so many bytes.
const MESSAGE: usize = 16 << 20;

/// The whole state after the step that all go on from, in this rank's memory, of which each rank gives its part; and how many bytes
/// have travelled. Every rank calls this at the same place with the same standings.
pub(super) fn bring_together(
    distributed: &Distributed,
    own: &[Held],
    all: &[Standing],
    common: &Common,
) -> Result<(Held, u64), TrainError> {
    let state = all.iter().find_map(|standing| standing.version(common.step));
    let state = state.map(|version| version.state.clone()).unwrap_or_default();
    let own = own.iter().find(|own| own.step == common.step);
    let pieces_of = |rank: usize| all[rank].version(common.step).map_or(&[][..], |version| &version.pieces);
    let Some(given) = &common.given else {
        let pieces = own.map(|own| own.pieces.clone()).unwrap_or_default();
        return Ok((Held { step: common.step, state, pieces }, 0));
    };
    let (mut pieces, mut travelled) = (Vec::with_capacity(given.len()), 0);
    let size = |chosen: &Chosen| bytes_of(&pieces_of(chosen.rank)[chosen.at]);
    let mut rest = given.as_slice();
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
        distributed.broadcast_bytes(&mut message, first.rank)?;
        travelled += bytes as u64;
        let mut from = 0;
        for chosen in together {
            let to = from + size(chosen)?;
            let piece = pieces_of(chosen.rank)[chosen.at].clone();
            pieces.push(HeldPiece { piece, bytes: Arc::new(message[from..to].to_vec()) });
            from = to;
        }
    }
    Ok((Held { step: common.step, state, pieces }, travelled))
}
