//! What a device does to matrices among gradients that travel as products of thin ones.

use phalanx_kernels::{Run, ThinMatrix};

use super::Array;
use crate::Result;

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
