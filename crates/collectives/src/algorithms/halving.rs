//! Recursive halving and doubling (Thakur, Rabenseifner & Gropp 2005): log₂ n steps, and no more bytes than a ring.
//!
//! In each step of the first half a rank exchanges half of its remaining range with a partner and reduces. In the second half the
//! same partners copy in reverse order. If the number of ranks is not a power of two, the ranks beyond it first give their buffers
//! to a partner and get the result at the end.

use std::ops::Range;

use super::Group;
use super::exchange::{Exchange, ReceiveMode};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// Returns the elements of chunks `chunks` of `parts`.
fn span(len: usize, parts: usize, chunks: &Range<usize>) -> Range<usize> {
    chunk(len, parts, chunks.start).start..chunks.end * len / parts
}

/// The steps of the first half: the partner, the chunks that this rank keeps, and those that it gives away.
fn steps(own: usize, size: usize) -> Vec<(usize, Range<usize>, Range<usize>)> {
    let (mut have, mut steps) = (0..size, Vec::new());
    let mut distance = size / 2;
    while distance > 0 {
        let middle = have.start + distance;
        let (low, high) = (have.start..middle, middle..have.end);
        let (keep, give) = if own & distance == 0 { (low, high) } else { (high, low) };
        steps.push((own ^ distance, keep.clone(), give));
        (have, distance) = (keep, distance / 2);
    }
    steps
}

/// Completes the chunk of this rank's place. The group's size must be a power of two.
pub(crate) fn reduce_scatter<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let (len, size) = (values.len(), group.len());
    for (partner, keep, give) in steps(group.own(), size) {
        let partner = group.at(partner);
        let (out, inn) = (span(len, size, &give), span(len, size, &keep));
        peers.exchange(values, Some((partner, out)), Some((partner, inn, ReceiveMode::Reduce(reduction))))?;
    }
    reduction.complete(&mut values[chunk(len, size, group.own())]);
    Ok(())
}

/// Copies every place's chunk to all. The group's size must be a power of two.
pub(crate) fn all_gather<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
) -> Result<()> {
    let (len, size) = (values.len(), group.len());
    for (partner, have, lack) in steps(group.own(), size).into_iter().rev() {
        let partner = group.at(partner);
        let (out, inn) = (span(len, size, &have), span(len, size, &lack));
        peers.exchange(values, Some((partner, out)), Some((partner, inn, ReceiveMode::Copy)))?;
    }
    Ok(())
}

/// Replaces every rank's buffer by the reduction of all, for groups of any size.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let (len, size, own) = (values.len(), group.len(), group.own());
    // Of the first 2·extra places the odd ones take no part.
    let power = if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 };
    let extra = size - power;
    let folded = own < 2 * extra;
    if folded && own % 2 == 1 {
        let partner = group.at(own - 1);
        peers.exchange(values, Some((partner, 0..len)), None)?;
        return peers.exchange(values, None, Some((partner, 0..len, ReceiveMode::Copy)));
    }
    if folded {
        let inn = (group.at(own + 1), 0..len, ReceiveMode::Reduce(reduction));
        peers.exchange(values, None, Some(inn))?;
    }
    let stay = (0..size).filter(|place| *place >= 2 * extra || place % 2 == 0).map(|place| group.at(place));
    if let Some(core) = Group::of(stay.collect(), group.at(own)) {
        reduce_scatter(peers, &core, values, reduction)?;
        all_gather(peers, &core, values)?;
    }
    if folded {
        peers.exchange(values, Some((group.at(own + 1), 0..len)), None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_agree_on_what_goes_between_them() {
        for size in [1, 2, 4, 8, 16] {
            for own in 0..size {
                let way = steps(own, size);
                for (index, (partner, keep, give)) in way.iter().enumerate() {
                    let (back, their_keep, their_give) = &steps(*partner, size)[index];
                    assert_eq!((*back, their_keep, their_give), (own, give, keep));
                }
                assert_eq!(way.last().map_or(0..1, |(_, keep, _)| keep.clone()), own..own + 1);
            }
        }
    }
}
