//! Low-rank compression of gradient matrices on a device (PowerSGD).

use phalanx_kernels::{Run, ThinMatrix};

use super::Array;
use crate::Result;

/// Products with low-rank factors on a device, queued with the other codecs ([`super::CodecQueue`]). All arrays are
/// flat, of f32. The order of sums depends on sizes alone.
pub trait DeviceLowRank {
    /// Makes a flag of u32 for elements that are not finite, set to 0.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn unspoiled(&self) -> Result<Array>;

    /// Copies runs of `from` to `to`, or adds them. Sets the flag `spoiled`, if there is one, if an element is not
    /// finite.
    ///
    /// # Errors
    /// If a run is out of range.
    fn move_runs(&self, runs: &[Run], of: (&Array, &Array), add: bool, spoiled: Option<&Array>)
    -> Result<()>;

    /// Computes values ← factor·values. Sets the flag `spoiled` if a result is not finite.
    ///
    /// # Errors
    /// Errors of the back end.
    fn scale(&self, values: &Array, factor: f32, spoiled: &Array) -> Result<()>;

    /// Computes values ← values + held and P ← values·Q, for each of the matrices in `values`.
    ///
    /// # Errors
    /// If an array has the wrong size.
    fn project(&self, matrices: &[ThinMatrix], of: (&Array, &Array), q: &Array, p: &Array) -> Result<()>;

    /// Computes Q ← Mᵀ·P for each of the matrices M in the values. Returns scratch memory that must live until the
    /// work is done.
    ///
    /// # Errors
    /// If an array has the wrong size.
    fn project_back(&self, matrices: &[ThinMatrix], of: (&Array, &Array), q: &Array) -> Result<Array>;

    /// Makes the columns of each P orthonormal, as `phalanx_kernels::orthogonalise` does, with another order of sums.
    ///
    /// # Errors
    /// If the array has the wrong size.
    fn orthogonalise(&self, matrices: &[ThinMatrix], p: &Array) -> Result<()>;

    /// Computes held ← values − P·Qᵀ and values ← ranks·P·Qᵀ, for each of the matrices in `values`. If the flag
    /// `spoiled` is set, values become NaN and `held` stays.
    ///
    /// # Errors
    /// If an array has the wrong size.
    fn expand(
        &self,
        matrices: &[ThinMatrix],
        of: (&Array, &Array),
        by: (&Array, &Array),
        spoiled: &Array,
        ranks: f32,
    ) -> Result<()>;
}
