//! Descriptions of the gradients of a sum, and of the ranks of a sum.

use std::ops::Range;

use phalanx_collectives::Algorithm;
use phalanx_tensor::ParamBucket;

use crate::traffic::{all_reduced, chunk, scattered};

/// Gradients that travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The number that identifies these gradients at every step. A codec keeps its state by slot.
    pub slot: usize,
    /// The number of gradients.
    pub len: usize,
    /// The gradients of matrices; the others are of vectors.
    pub matrices: Vec<MatrixRange>,
}

/// A matrix among the gradients of a bucket, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixRange {
    /// Its elements.
    pub range: Range<usize>,
    /// The number of rows: the first dimension of the parameter.
    pub rows: usize,
}

impl MatrixRange {
    /// The number of columns: the product of the further dimensions of the parameter.
    pub fn columns(&self) -> usize {
        self.range.len() / self.rows.max(1)
    }
}

impl Bucket {
    /// Describes the gradients of a bucket. Parameters of two and more dimensions are matrices.
    pub fn of(slot: usize, param: &ParamBucket) -> Self {
        let matrices =
            param.entries().iter().filter(|entry| entry.shape.rank() > 1 && !entry.range.is_empty());
        let matrices =
            matrices.map(|entry| MatrixRange { range: entry.range.clone(), rows: entry.shape.dims()[0] });
        Self { slot, len: param.len(), matrices: matrices.collect() }
    }

    /// Describes a shard of a bucket. Its elements belong to parts of parameters, so they form one nearly square matrix
    /// and a short rest.
    pub fn of_shard(slot: usize, len: usize) -> Self {
        let rows = len.isqrt();
        let matrix = (rows > 1).then(|| MatrixRange { range: 0..len / rows * rows, rows });
        Self { slot, len, matrices: matrix.into_iter().collect() }
    }
}

/// The part of a sum that each rank keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumPlacement {
    /// Every rank keeps the whole sum.
    All,
    /// Rank `r` of `n` keeps elements `r·len/n .. (r + 1)·len/n`.
    Shard,
    /// Rank 0 keeps the whole sum.
    Root,
}

impl SumPlacement {
    /// Returns the elements of `len` that rank `rank` of `ranks` sums: its shard, or with a leader all on rank 0.
    pub fn part(self, len: usize, ranks: usize, rank: usize) -> Range<usize> {
        match self {
            Self::All | Self::Shard => chunk(len, ranks, rank),
            Self::Root if rank == 0 => 0..len,
            Self::Root => 0..0,
        }
    }
}

/// The ranks that a bucket is summed over, as a plan knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumGroup {
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The part of the sum that each rank keeps.
    pub keeps: SumPlacement,
    /// The algorithm of reductions.
    pub algorithm: Algorithm,
}

impl SumGroup {
    /// Returns the most bytes that a rank sends in [`crate::Peers::sum`] over `bytes`.
    pub fn summed(&self, bytes: u64) -> u64 {
        match self.keeps {
            SumPlacement::All => all_reduced(bytes, self.ranks, self.algorithm),
            SumPlacement::Shard | SumPlacement::Root => scattered(bytes, self.ranks),
        }
    }

    /// Returns the bytes that the rank sends in [`crate::Peers::all_to_all`] if the part for rank `r` has `part(r)`
    /// bytes.
    pub fn dealt(&self, part: impl Fn(usize) -> u64) -> u64 {
        (0..self.ranks).filter(|to| *to != self.rank).map(part).sum()
    }

    /// Returns the bytes that the rank sends in [`crate::Peers::all_gather`] of a message of `bytes`.
    pub fn gathered(&self, bytes: u64) -> u64 {
        (self.ranks as u64 - 1) * bytes
    }
}
