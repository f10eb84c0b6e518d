//! The grid: a reduce-scatter along each row, an all-reduce of the result along each column, and an all-gather along the rows. `2(r
//! − 1) + 2(c − 1)` steps instead of a ring's `2(rc − 1)`, with the same bytes (Mikami et al. 2018).

use super::exchange::Exchange;
use super::{Group, ring};
use crate::dtype::Element;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// Returns the rows of the grid: the largest divisor of the size up to its square root. This is 1 for primes: one long row.
pub(crate) fn rows(size: usize) -> usize {
    (1..=size).take_while(|r| r * r <= size).filter(|r| size.is_multiple_of(*r)).last().unwrap_or(1)
}

/// Replaces every rank's buffer by the reduction of all.
pub(crate) fn all_reduce<T: Element>(
    peers: &mut impl Exchange,
    group: &Group,
    values: &mut [T],
    reduction: Reduction,
) -> Result<()> {
    let (size, own) = (group.len(), group.own());
    let (rows, columns) = (rows(size), size / rows(size));
    let (row, column) = (own / columns, own % columns);
    let in_row = (0..columns).map(|column| group.at(row * columns + column)).collect();
    let in_column = (0..rows).map(|row| group.at(row * columns + column)).collect();
    let (Some(in_row), Some(in_column)) =
        (Group::of(in_row, group.at(own)), Group::of(in_column, group.at(own)))
    else {
        return Ok(());
    };
    let served = chunk(values.len(), columns, column);
    ring::reduce_scatter(peers, &in_row, values, reduction.partial())?;
    ring::all_reduce(peers, &in_column, &mut values[served], reduction)?;
    ring::all_gather(peers, &in_row, values)
}

#[cfg(test)]
mod tests {
    #[test]
    fn grids_are_as_square_as_they_can_be() {
        let grids = [1, 2, 3, 4, 6, 7, 8, 9, 12].map(super::rows);
        assert_eq!(grids, [1, 1, 1, 2, 2, 1, 2, 3, 3]);
    }
}
