//! The ring: every rank communicates with its two neighbours only, and every link carries the same load.
//!
//! An all-reduce is a reduce-scatter (after n − 1 steps rank r holds the reduced chunk r) and an all-gather (the chunks travel once
//! more). Each rank sends 2·(n − 1)/n of the buffer, the minimum (Patarasuk & Yuan 2009). A chunk is reduced along the ring in one
//! fixed order and then copied, so the result has the same bits on every rank.

use super::Group;
use super::exchange::{Exchange, ReceiveMode};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::{chunk, pieces};
use crate::reduce::Reduction;

/// Completes the chunk of this rank's place; the rest of the buffer holds partial results.
pub(crate) fn reduce_scatter<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let (len, size) = (values.len(), group.len());
    for step in 0..size - 1 {
        let outgoing = chunk(len, size, group.behind(step + 1));
        let incoming = chunk(len, size, group.behind(step + 2));
        let take = ReceiveMode::Reduce(reduction);
        peers.exchange(values, Some((group.next(), outgoing)), Some((group.previous(), incoming, take)))?;
    }
    reduction.complete(&mut values[chunk(len, size, group.own())]);
    Ok(())
}

/// Sends complete chunks around the ring, each rank beginning with that of its place.
pub(crate) fn all_gather<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
) -> Result<()> {
    let (len, size) = (values.len(), group.len());
    for step in 0..size - 1 {
        let outgoing = chunk(len, size, group.behind(step));
        let incoming = chunk(len, size, group.behind(step + 1));
        let inn = (group.previous(), incoming, ReceiveMode::Copy);
        peers.exchange(values, Some((group.next(), outgoing)), Some(inn))?;
    }
    Ok(())
}

/// Replaces every rank's buffer by the reduction of all.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    reduce_scatter(peers, group, values, reduction)?;
    all_gather(peers, group, values)
}

/// Copies the buffer at place `root` to all others, piece by piece along the ring.
pub(crate) fn broadcast<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    root: usize,
) -> Result<()> {
    if group.len() == 1 {
        return Ok(());
    }
    let last = (group.own() + 1) % group.len() == root;
    for piece in pieces::<T>(0..values.len()) {
        if group.own() != root {
            peers.take(&mut values[piece.clone()], group.previous(), ReceiveMode::Copy)?;
        }
        if !last {
            peers.send(group.next(), bytemuck::cast_slice(&values[piece]))?;
        }
    }
    Ok(())
}

/// Replaces the buffer at place `root` by the reduction of all: a reduce-scatter whose chunks then go to the root. The other
/// buffers are overwritten.
pub(crate) fn reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
    root: usize,
) -> Result<()> {
    let (len, size) = (values.len(), group.len());
    reduce_scatter(peers, group, values, reduction)?;
    if group.own() != root {
        let own = chunk(len, size, group.own());
        return peers.exchange(values, Some((group.at(root), own)), None);
    }
    for place in (0..size).filter(|place| *place != root) {
        peers.exchange(values, None, Some((group.at(place), chunk(len, size, place), ReceiveMode::Copy)))?;
    }
    Ok(())
}
