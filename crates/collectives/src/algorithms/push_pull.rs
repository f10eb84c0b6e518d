//! Push-pull: every rank serves a part of the buffer. All ranks push their values for it, it reduces them, and all pull the result,
//! as with a sharded parameter server on the workers (Li et al. 2014). It sends the bytes of a ring in two rounds of messages
//! between all pairs.

use super::Group;
use super::exchange::{Exchange, ReceiveMode};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// Completes the chunk of this rank's place, reduced in the order of places after it.
pub(crate) fn reduce_scatter<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let (len, size, own) = (values.len(), group.len(), group.own());
    let served = chunk(len, size, own);
    for step in 1..size {
        let (to, from) = ((own + step) % size, group.behind(step));
        let out = (group.at(to), chunk(len, size, to));
        let inn = (group.at(from), served.clone(), ReceiveMode::Reduce(reduction));
        peers.exchange(values, Some(out), Some(inn))?;
    }
    reduction.complete(&mut values[served]);
    Ok(())
}

/// Copies every place's chunk from its owner to all.
pub(crate) fn all_gather<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
) -> Result<()> {
    let (len, size, own) = (values.len(), group.len(), group.own());
    for step in 1..size {
        let (to, from) = ((own + step) % size, group.behind(step));
        let out = (group.at(to), chunk(len, size, own));
        let inn = (group.at(from), chunk(len, size, from), ReceiveMode::Copy);
        peers.exchange(values, Some(out), Some(inn))?;
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
