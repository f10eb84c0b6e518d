//! Every rank serves a part of the buffer: all push their values for it, it reduces, and all pull the result, as with a
//! parameter server whose shards live on the workers (Li et al. 2014). The bytes of a ring in two rounds of messages,
//! between all pairs at once.

use super::Group;
use super::exchange::{Exchange, Take};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// The chunk of this rank's place becomes complete, reduced in the order of places after it.
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
        let inn = (group.at(from), served.clone(), Take::Reduce(reduction));
        peers.exchange(values, Some(out), Some(inn))?;
    }
    reduction.complete(&mut values[served]);
    Ok(())
}

/// Every place's chunk reaches all, straight from its owner.
pub(crate) fn all_gather<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
) -> Result<()> {
    let (len, size, own) = (values.len(), group.len(), group.own());
    for step in 1..size {
        let (to, from) = ((own + step) % size, group.behind(step));
        let out = (group.at(to), chunk(len, size, own));
        let inn = (group.at(from), chunk(len, size, from), Take::Copy);
        peers.exchange(values, Some(out), Some(inn))?;
    }
    Ok(())
}

/// Every rank's buffer becomes the reduction of all.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    reduce_scatter(peers, group, values, reduction)?;
    all_gather(peers, group, values)
}
