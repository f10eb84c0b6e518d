//! The binomial tree: ⌈log₂ n⌉ steps, for buffers so small that the number of steps decides the cost.
//!
//! Places are counted from the root. The parent of a place is the place without its lowest bit; the children are the place with one
//! more bit below its lowest. Large buffers go in pieces, so that a piece moves up while the next arrives.

use super::Group;
use super::exchange::{Exchange, ReceiveMode};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::pieces;
use crate::reduce::Reduction;

/// Returns the parent and the children of this rank, the nearest child first.
fn relatives(group: &Group, root: usize) -> (Option<usize>, Vec<usize>) {
    let size = group.len();
    let place = (group.own() + size - root) % size;
    let rank = |place: usize| group.at(place + root);
    let lowest = if place == 0 { size.next_power_of_two() } else { place & place.wrapping_neg() };
    let parent = (place != 0).then(|| rank(place - lowest));
    let bits = std::iter::successors(Some(1), |bit| Some(bit * 2)).take_while(|bit| *bit < lowest);
    (parent, bits.map(|bit| place + bit).filter(|child| *child < size).map(rank).collect())
}

/// Replaces the buffer at place `root` by the reduction of all. The other buffers are overwritten.
pub(crate) fn reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
    root: usize,
) -> Result<()> {
    let (parent, children) = relatives(group, root);
    for piece in pieces::<T>(0..values.len()) {
        for child in &children {
            peers.take(&mut values[piece.clone()], *child, ReceiveMode::Reduce(reduction))?;
        }
        match parent {
            Some(parent) => peers.send(parent, bytemuck::cast_slice(&values[piece]))?,
            None => reduction.complete(&mut values[piece]),
        }
    }
    Ok(())
}

/// Copies the buffer at place `root` to all others.
pub(crate) fn broadcast<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    root: usize,
) -> Result<()> {
    let (parent, children) = relatives(group, root);
    for piece in pieces::<T>(0..values.len()) {
        if let Some(parent) = parent {
            peers.take(&mut values[piece.clone()], parent, ReceiveMode::Copy)?;
        }
        // The farthest child has the largest subtree.
        for child in children.iter().rev() {
            peers.send(*child, bytemuck::cast_slice(&values[piece.clone()]))?;
        }
    }
    Ok(())
}

/// Replaces every rank's buffer by the reduction of all: up the tree and down again.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    reduce(peers, group, values, reduction, 0)?;
    broadcast(peers, group, values, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_parent_that_knows_it() {
        for size in 1..=17 {
            for root in 0..size {
                let of = |rank| relatives(&Group::world(size, rank), root);
                let mut found = 0;
                for rank in 0..size {
                    let (parent, children) = of(rank);
                    assert_eq!(parent.is_none(), rank == root);
                    assert!(parent.is_none_or(|parent| of(parent).1.contains(&rank)), "{rank} of {size}");
                    assert!(children.len() <= size.next_power_of_two().ilog2() as usize);
                    found += children.len();
                }
                assert_eq!(found, size - 1);
            }
        }
    }
}
