//! Where matrices that travel as products of thin ones lie: what processors and GPUs are told alike.

use std::ops::Range;

/// A matrix among many numbers that goes as a product P·Qᵀ of two thin ones, and where these lie among those of other matrices. All
/// are row-major: M of rows×columns, P of rows×rank, Q of columns×rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinMatrix {
    /// Its first element among the numbers.
    pub start: usize,
    /// The first of as many elements among those that are kept of matrices.
    pub held: usize,
    /// The first element of P.
    pub p: usize,
    /// The first element of Q.
    pub q: usize,
    /// Rows of the matrix and of P.
    pub rows: usize,
    /// Columns of the matrix, and rows of Q.
    pub columns: usize,
    /// Columns of P and Q.
    pub rank: usize,
}

impl ThinMatrix {
    /// The matrix's elements.
    pub fn elements(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }

    /// The elements that are kept of it.
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

/// Neighbours of some numbers that go to a place among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first among those that they come from.
    pub from: usize,
    /// The first among those that they go to.
    pub to: usize,
    /// How many they are.
    pub len: usize,
}
