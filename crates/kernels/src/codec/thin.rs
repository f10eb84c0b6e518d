//! Places of matrices sent as products of thin ones, for CPU and GPU kernels.

use std::ops::Range;

/// The positions of a matrix M and its factors P and Q in shared arrays, with M ≈ P·Qᵀ.
///
/// All are row-major: M is rows×columns, P is rows×rank, Q is columns×rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinMatrix {
    /// The first element of M among all numbers.
    pub start: usize,
    /// The first element of the copy of M among the kept elements of all matrices.
    pub held: usize,
    /// The first element of P.
    pub p: usize,
    /// The first element of Q.
    pub q: usize,
    /// Rows of M and of P.
    pub rows: usize,
    /// Columns of M, and rows of Q.
    pub columns: usize,
    /// Columns of P and Q.
    pub rank: usize,
}

impl ThinMatrix {
    /// The elements of M.
    pub fn elements(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }

    /// The kept elements of M.
    pub fn held(&self) -> Range<usize> {
        self.held..self.held + self.rows * self.columns
    }

    /// The elements of P.
    pub fn p(&self) -> Range<usize> {
        self.p..self.p + self.rows * self.rank
    }

    /// The elements of Q.
    pub fn q(&self) -> Range<usize> {
        self.q..self.q + self.columns * self.rank
    }
}

/// A run of neighbours that is copied elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first element at the source.
    pub from: usize,
    /// The first element at the destination.
    pub to: usize,
    /// The number of elements.
    pub len: usize,
}
