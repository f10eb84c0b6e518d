//! Operations whose parts have different lengths, which the messages state.

use super::exchange::Exchange;
use super::{Group, MAX_MESSAGE};
use crate::error::Result;

/// Returns the buffers of all ranks, which may have different lengths, around a ring.
pub(crate) fn all_gather(peers: &mut impl Exchange, group: &Group, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![Vec::new(); group.len()];
    all[group.own()] = own.to_vec();
    for step in 0..group.len() - 1 {
        let (out, inn) = (group.behind(step), group.behind(step + 1));
        peers.send(group.next(), &all[out])?;
        all[inn] = peers.receive_any(group.previous(), MAX_MESSAGE)?;
    }
    Ok(all)
}

/// Returns each other rank's part for this one. In step `s` a rank sends to the one `s` places ahead and receives from the one `s`
/// places behind, so no rank is the target of several at once.
pub(crate) fn all_to_all(peers: &mut impl Exchange, group: &Group, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
    let (size, own) = (group.len(), group.own());
    let mut all = vec![Vec::new(); size];
    all[own] = parts[own].to_vec();
    for step in 1..size {
        let (to, from) = ((own + step) % size, group.behind(step));
        peers.send(group.at(to), parts[to])?;
        all[from] = peers.receive_any(group.at(from), MAX_MESSAGE)?;
    }
    Ok(all)
}
