//! Inside each host first, then between hosts: the slow links between hosts carry each byte once a host instead of once a
//! rank.
//!
//! With as many ranks on every host, all of them take part between hosts: a reduce-scatter inside, an all-reduce among the
//! ranks of the same place on each host, an all-gather inside. Otherwise the first rank of each host does it for the others.

use super::exchange::Take;
use super::{Group, chunk, ring, single};
use crate::dtype::Element;
use crate::engine::Native;
use crate::error::Result;
use crate::reduce::Reduction;

/// The ranks of each host, in order.
pub(crate) fn by_host(hosts: &[usize]) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new(); hosts.iter().max().map_or(0, |most| most + 1)];
    hosts.iter().enumerate().for_each(|(rank, host)| groups[*host].push(rank));
    groups
}

/// This rank's host, and the ranks of its place on every host if all hosts have as many.
fn levels(native: &Native) -> Option<(Group, Option<Group>)> {
    let hosts = by_host(&native.hosts);
    let own = hosts.iter().find(|ranks| ranks.contains(&native.rank))?;
    let inside = Group::of(own.clone(), native.rank)?;
    let even = hosts.iter().all(|ranks| ranks.len() == own.len());
    let across = if even {
        Group::of(hosts.iter().map(|ranks| ranks[inside.own()]).collect(), native.rank)
    } else {
        None
    };
    Some((inside, across))
}

/// The first rank of each host; `None` on the others.
fn leaders(native: &Native) -> Option<Group> {
    Group::of(by_host(&native.hosts).iter().map(|ranks| ranks[0]).collect(), native.rank)
}

/// Every rank's buffer becomes the reduction of all.
pub(crate) fn all_reduce<T: Element>(
    native: &mut Native,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let Some((inside, across)) = levels(native) else { return Ok(()) };
    if let Some(across) = across {
        let served = chunk(values.len(), inside.len(), inside.own());
        if !native.reduce_scatter_on_host(values, reduction.partial())? {
            ring::reduce_scatter(native, &inside, values, reduction.partial())?;
        }
        ring::all_reduce(native, &across, &mut values[served], reduction)?;
        if !native.all_gather_on_host(values)? {
            ring::all_gather(native, &inside, values)?;
        }
        return Ok(());
    }
    if !native.reduce_on_host(values, reduction.partial())? {
        single::reduce(native, &inside, values, reduction.partial(), 0)?;
    }
    if let Some(leaders) = leaders(native) {
        ring::all_reduce(native, &leaders, values, reduction)?;
    }
    if !native.broadcast_on_host(values)? {
        single::broadcast(native, &inside, values, 0)?;
    }
    Ok(())
}

/// The root's buffer reaches all others: once to each host, and on from there.
pub(crate) fn broadcast<T: Element>(native: &mut Native, values: &mut [T], root: usize) -> Result<()> {
    let Some((inside, _)) = levels(native) else { return Ok(()) };
    // The root gives its buffer to its host's first rank, and that one to the other hosts'.
    let first = by_host(&native.hosts)[native.hosts[root]][0];
    let all = 0..values.len();
    if root != first && native.rank == root {
        native.exchange(values, Some((first, all.clone())), None)?;
    }
    if root != first && native.rank == first {
        native.exchange(values, None, Some((root, all, Take::Copy)))?;
    }
    if let Some(leaders) = leaders(native) {
        let place = leaders.place_of(first).unwrap_or(0);
        ring::broadcast(native, &leaders, values, place)?;
    }
    if !native.broadcast_on_host(values)? {
        single::broadcast(native, &inside, values, 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranks_are_grouped_by_host() {
        assert_eq!(super::by_host(&[0, 1, 0, 2, 1]), [vec![0, 2], vec![1, 4], vec![3]]);
        assert!(super::by_host(&[]).is_empty());
    }
}
