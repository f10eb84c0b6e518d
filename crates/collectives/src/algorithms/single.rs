//! Single reducer: one rank reduces for all. The simplest algorithm, and the slowest for more than a few ranks.

use super::exchange::{Exchange, ReceiveMode};
use super::{Group, MAX_MESSAGE};
use crate::dtype::Element;
use crate::error::Result;
use crate::reduce::Reduction;

/// Replaces the buffer at place `root` by the reduction of all, in the order of places after it.
pub(crate) fn reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
    root: usize,
) -> Result<()> {
    let (all, size) = (0..values.len(), group.len());
    if group.own() != root {
        return peers.exchange(values, Some((group.at(root), all)), None);
    }
    for step in 1..size {
        let from = group.at(root + step);
        peers.exchange(values, None, Some((from, all.clone(), ReceiveMode::Reduce(reduction))))?;
    }
    reduction.complete(values);
    Ok(())
}

/// Copies the buffer at place `root` to all others.
pub(crate) fn broadcast<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    root: usize,
) -> Result<()> {
    let (all, size) = (0..values.len(), group.len());
    if group.own() != root {
        return peers.exchange(values, None, Some((group.at(root), all, ReceiveMode::Copy)));
    }
    for step in 1..size {
        peers.exchange(values, Some((group.at(root + step), all.clone())), None)?;
    }
    Ok(())
}

/// Replaces every rank's buffer by the reduction of all, through the first place.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    reduce(peers, group, values, reduction, 0)?;
    broadcast(peers, group, values, 0)
}

/// Returns all buffers at the root, in the order of places; nothing elsewhere.
pub(crate) fn gather(
    peers: &mut impl Exchange,
    group: &Group,
    own: &[u8],
    root: usize,
) -> Result<Vec<Vec<u8>>> {
    if group.own() != root {
        peers.send(group.at(root), own)?;
        return Ok(Vec::new());
    }
    let mut all = Vec::with_capacity(group.len());
    for place in 0..group.len() {
        all.push(if place == root {
            own.to_vec()
        } else {
            peers.receive_any(group.at(place), MAX_MESSAGE)?
        });
    }
    Ok(all)
}

/// Returns this rank's part from the root.
pub(crate) fn scatter(
    peers: &mut impl Exchange,
    group: &Group,
    parts: &[&[u8]],
    root: usize,
) -> Result<Vec<u8>> {
    if group.own() != root {
        return peers.receive_any(group.at(root), MAX_MESSAGE);
    }
    for (place, part) in parts.iter().enumerate().filter(|(place, _)| *place != root) {
        peers.send(group.at(place), part)?;
    }
    Ok(parts.get(root).map_or_else(Vec::new, |part| part.to_vec()))
}
