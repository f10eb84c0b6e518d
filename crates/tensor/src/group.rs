//! Ranks that compute together, as ops see them: this crate knows no transport, only that somebody adds and gathers.

use candle_core::{Device, Tensor};

use crate::backend::Array;
use crate::error::HookResult;

/// Some ranks that call the same operations in the same order on flat arrays of f32 or f64, which stay where they lie: a
/// transport for the host refuses those of a device. Ops whose results depend on what other
/// ranks hold communicate over it: [`crate::ops::all_reduce`] and its kin, synchronised batch norm, the contrastive loss.
///
/// Every rank gets the same bits where it is given the same numbers.
pub trait ProcessGroup: std::fmt::Debug + Send + Sync {
    /// This rank among those of the group, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Replaces every number by its sum over the ranks, which all give as many.
    ///
    /// # Errors
    /// The transport's.
    fn all_reduce(&self, values: &Array) -> HookResult;

    /// Brings the parts of all ranks together: `values` are those of rank 0, `lens[0]` numbers, then those of rank 1, and so
    /// on. This rank's are there already; those of the others are overwritten.
    ///
    /// # Errors
    /// The transport's, and if `lens` do not add up to the numbers that there are.
    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult;

    /// Replaces this rank's part of `values`, which lie as in [`ProcessGroup::all_gather`], by its sum over the ranks. What is
    /// in the other parts afterwards is unspecified.
    ///
    /// # Errors
    /// The transport's, and if `lens` do not add up to the numbers that there are.
    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult;
}

/// The count that every rank of the group gives, by rank: how many rows each has, where they need not have as many.
///
/// # Errors
/// The transport's.
pub fn gather_counts(
    group: &dyn ProcessGroup,
    own: usize,
) -> Result<Vec<usize>, Box<dyn std::error::Error + Send + Sync>> {
    // f64 holds every count below 2⁵³ exactly.
    let mut counts = vec![0.0; group.size()];
    counts[group.rank()] = own as f64;
    let counts = Array::from(Tensor::from_vec(counts, group.size(), &Device::Cpu)?);
    group.all_gather(&counts, &vec![1; group.size()])?;
    let counts = counts.host("counts of rows")?.to_vec1::<f64>()?;
    Ok(counts.into_iter().map(|count| count as usize).collect())
}

/// How `len` rows are spread over `parts` ranks wherever nothing else is said: rank `r` has rows
/// `r·len/parts .. (r + 1)·len/parts`, so that no two differ by more than one.
pub fn even_lens(len: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|part| (part + 1) * len / parts - part * len / parts).collect()
}
