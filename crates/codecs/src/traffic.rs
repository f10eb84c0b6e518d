//! The bytes that collective operations send.

use std::ops::Range;

use phalanx_collectives::Algorithm;

/// Elements of rank `rank` when `len` are cut among `ranks`.
pub fn chunk(len: usize, ranks: usize, rank: usize) -> Range<usize> {
    rank * len / ranks..(rank + 1) * len / ranks
}

/// Bytes that the rank sends which sends most of an all-reduce of `bytes` among `ranks`.
pub fn all_reduced(bytes: u64, ranks: usize, algorithm: Algorithm) -> u64 {
    let around = scattered(2 * bytes, ranks);
    match algorithm {
        Algorithm::Tree => u64::from(ranks.next_power_of_two().ilog2()) * bytes,
        Algorithm::SingleReducer => (ranks as u64 - 1) * bytes,
        Algorithm::HalvingDoubling if !ranks.is_power_of_two() => {
            scattered(2 * bytes, ranks.next_power_of_two() / 2) + bytes
        }
        _ => around,
    }
}

/// Returns the bytes that a rank sends in a reduce-scatter or an all-gather: one pass through the ring.
pub fn scattered(bytes: u64, ranks: usize) -> u64 {
    (u128::from(bytes) * (ranks as u128 - 1) / ranks as u128) as u64
}
