//! What a device does to matrices among gradients that travel as products of thin ones.

use std::ops::Range;

use super::Array;
use crate::Result;

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

/// Products of thin matrices on a device, in the order of its codecs' work ([`super::DeviceCodecs`], which says when that is). All arrays
/// are flat and of f32; sums have an order that depends on sizes alone.
pub trait DeviceLowRank {
    /// A flag of u32 that says of nothing yet that it is not finite.
    ///
    /// # Errors
    /// If there is no such memory.
    fn unspoiled(&self) -> Result<Array>;

    /// Overwrites numbers of `to` by runs of those of `from`, or adds those to them. One that is not finite sets the flag `spoiled`, if
    /// there is one.
    ///
    /// # Errors
    /// If a run does not lie within both.
    fn move_runs(&self, runs: &[Run], of: (&Array, &Array), add: bool, spoiled: Option<&Array>)
    -> Result<()>;

    /// values ← factor·values. One that is then not finite sets the flag `spoiled`.
    ///
    /// # Errors
    /// The back end's.
    fn scale(&self, values: &Array, factor: f32, spoiled: &Array) -> Result<()>;

    /// values ← values + held and P ← values·Q, for each of the matrices among `values`.
    ///
    /// # Errors
    /// If an array does not have what a matrix needs of it.
    fn project(&self, matrices: &[ThinMatrix], of: (&Array, &Array), q: &Array, p: &Array) -> Result<()>;

    /// Q ← Mᵀ·P for each of the matrices M among the values. What it has worked in, which it gives, is not to be freed before that is
    /// done.
    ///
    /// # Errors
    /// If an array does not have what a matrix needs of it.
    fn project_back(&self, matrices: &[ThinMatrix], of: (&Array, &Array), q: &Array) -> Result<Array>;

    /// Makes the columns of each P orthonormal, as `phalanx_kernels::orthogonalise` does, with sums in another order.
    ///
    /// # Errors
    /// If the array does not have what a matrix needs of it.
    fn orthogonalise(&self, matrices: &[ThinMatrix], p: &Array) -> Result<()>;

    /// held ← values − P·Qᵀ and values ← ranks·P·Qᵀ, for each of the matrices among `values`; where the flag `spoiled` is set values become
    /// NaN, and what is held stays.
    ///
    /// # Errors
    /// If an array does not have what a matrix needs of it.
    fn expand(
        &self,
        matrices: &[ThinMatrix],
        of: (&Array, &Array),
        by: (&Array, &Array),
        spoiled: &Array,
        ranks: f32,
    ) -> Result<()>;
}
