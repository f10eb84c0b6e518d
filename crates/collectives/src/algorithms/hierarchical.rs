//! Hierarchical algorithms: inside each host first, then between hosts. The slow links between hosts carry each byte once per host
//! instead of once per rank.
//!
//! If all hosts have equally many ranks, all ranks take part between hosts: a reduce-scatter inside each host, an all-reduce among
//! the ranks of one place on each host, an all-gather inside. Otherwise the first rank of each host represents the others.

use super::exchange::{Exchange, ReceiveMode};
use super::{Group, ring, single};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// The hosts of ranks, and operations among ranks of one host without messages.
///
/// Operations on the host return false without doing anything if its ranks share no memory, which is the default.
pub(crate) trait Hosts: Exchange {
    /// Returns this rank.
    fn rank(&self) -> usize;

    /// Returns the host of each rank, numbered in the order of appearance.
    fn hosts(&self) -> &[usize];

    /// Replaces this rank's chunk of the buffer by the reduction on the host.
    fn reduce_scatter_on_host<T: Element>(&mut self, _values: &mut [T], _: Reduction) -> Result<bool> {
        Ok(false)
    }

    /// Copies the chunk of each rank to all buffers of the host.
    fn all_gather_on_host<T: Element>(&mut self, _values: &mut [T]) -> Result<bool> {
        Ok(false)
    }

    /// Replaces the first rank's buffer by the reduction on the host.
    fn reduce_on_host<T: Element>(&mut self, _values: &mut [T], _: Reduction) -> Result<bool> {
        Ok(false)
    }

    /// Copies the first rank's buffer to the others of the host.
    fn broadcast_on_host<T: Element>(&mut self, _values: &mut [T]) -> Result<bool> {
        Ok(false)
    }
}

/// Returns the ranks of each host, in order.
pub(crate) fn by_host(hosts: &[usize]) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new(); hosts.iter().max().map_or(0, |most| most + 1)];
    hosts.iter().enumerate().for_each(|(rank, host)| groups[*host].push(rank));
    groups
}

/// Returns this rank's host, and the ranks of its place on every host if all hosts have equally many.
fn levels(peers: &impl Hosts) -> Option<(Group, Option<Group>)> {
    let hosts = by_host(peers.hosts());
    let own = hosts.iter().find(|ranks| ranks.contains(&peers.rank()))?;
    let inside = Group::of(own.clone(), peers.rank())?;
    let even = hosts.iter().all(|ranks| ranks.len() == own.len());
    let across = if even {
        Group::of(hosts.iter().map(|ranks| ranks[inside.own()]).collect(), peers.rank())
    } else {
        None
    };
    Some((inside, across))
}

/// Returns the first rank of each host; `None` on the other ranks.
fn leaders(peers: &impl Hosts) -> Option<Group> {
    Group::of(by_host(peers.hosts()).iter().map(|ranks| ranks[0]).collect(), peers.rank())
}

/// Replaces every rank's buffer by the reduction of all.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Hosts,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let Some((inside, across)) = levels(peers) else { return Ok(()) };
    if let Some(across) = across {
        let served = chunk(values.len(), inside.len(), inside.own());
        if !peers.reduce_scatter_on_host(values, reduction.partial())? {
            ring::reduce_scatter(peers, &inside, values, reduction.partial())?;
        }
        ring::all_reduce(peers, &across, &mut values[served], reduction)?;
        if !peers.all_gather_on_host(values)? {
            ring::all_gather(peers, &inside, values)?;
        }
        return Ok(());
    }
    if !peers.reduce_on_host(values, reduction.partial())? {
        single::reduce(peers, &inside, values, reduction.partial(), 0)?;
    }
    if let Some(leaders) = leaders(peers) {
        ring::all_reduce(peers, &leaders, values, reduction)?;
    }
    if !peers.broadcast_on_host(values)? {
        single::broadcast(peers, &inside, values, 0)?;
    }
    Ok(())
}

/// Copies the root's buffer to all others: once to each host, and on from there.
pub(crate) fn broadcast<T: Element>(peers: &mut impl Hosts, values: &mut [T], root: usize) -> Result<()> {
    let Some((inside, _)) = levels(peers) else { return Ok(()) };
    // The root sends to its host's first rank, and that one to the other hosts' first ranks.
    let first = by_host(peers.hosts())[peers.hosts()[root]][0];
    let all = 0..values.len();
    if root != first && peers.rank() == root {
        peers.exchange(values, Some((first, all.clone())), None)?;
    }
    if root != first && peers.rank() == first {
        peers.exchange(values, None, Some((root, all, ReceiveMode::Copy)))?;
    }
    if let Some(leaders) = leaders(peers) {
        let place = leaders.place_of(first).unwrap_or(0);
        ring::broadcast(peers, &leaders, values, place)?;
    }
    if !peers.broadcast_on_host(values)? {
        single::broadcast(peers, &inside, values, 0)?;
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
