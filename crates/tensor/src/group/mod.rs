//! The interface of collective operations for ops. This crate has no transport.

mod outline;

pub use outline::{GroupTraffic, OutlineGroup};

use candle_core::{Device, Tensor};

use crate::backend::Array;
use crate::error::HookResult;

/// An operation of a group that is under way.
pub trait Underway: std::fmt::Debug + Send {
    /// Waits for its end. What is computed from then on may use its values.
    ///
    /// # Errors
    /// Errors of the transport.
    fn wait(self: Box<Self>) -> HookResult;
}

/// An operation that is over.
#[derive(Debug)]
struct Over;

impl Underway for Over {
    fn wait(self: Box<Self>) -> HookResult {
        Ok(())
    }
}

/// Returns an operation that is over.
pub fn over() -> Box<dyn Underway> {
    Box::new(Over)
}

/// The beginning of an operation that may still be under way.
pub type BegunResult = Result<Box<dyn Underway>, Box<dyn std::error::Error + Send + Sync>>;

/// Ranks that call the same operations in the same order on flat arrays of f32 or f64.
///
/// Arrays stay on their device: a transport for the host rejects those of a device. Its users are the ops whose
/// results depend on other ranks: [`crate::ops::all_reduce`] and related ones, synchronised batch norm, the
/// contrastive loss. Every rank gets the same bits from the same inputs.
pub trait ProcessGroup: std::fmt::Debug + Send + Sync {
    /// This rank's index in the group, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Replaces every element by its sum over the ranks. All ranks give equally many.
    ///
    /// # Errors
    /// Errors of the transport.
    fn all_reduce(&self, values: &Array) -> HookResult;

    /// Begins [`ProcessGroup::all_reduce`]. The values must not be used before [`Underway::wait`]. By default the operation is over when
    /// this returns.
    ///
    /// # Errors
    /// Errors of the transport.
    fn begin_all_reduce(&self, values: &Array) -> BegunResult {
        self.all_reduce(values)?;
        Ok(over())
    }

    /// Gathers the parts of all ranks: `values` has `lens[0]` elements of rank 0, then those of rank 1, and so on.
    /// This rank's part must be in place; the other parts are overwritten.
    ///
    /// # Errors
    /// Errors of the transport, and if `lens` do not add up to the number of elements.
    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult;

    /// Begins [`ProcessGroup::all_gather`], as [`ProcessGroup::begin_all_reduce`] does.
    ///
    /// # Errors
    /// Errors of [`ProcessGroup::all_gather`].
    fn begin_all_gather(&self, values: &Array, lens: &[usize]) -> BegunResult {
        self.all_gather(values, lens)?;
        Ok(over())
    }

    /// Replaces this rank's part of `values`, laid out as in [`ProcessGroup::all_gather`], by its sum over the ranks.
    /// The other parts are unspecified afterwards.
    ///
    /// # Errors
    /// Errors of the transport, and if `lens` do not add up to the number of elements.
    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult;

    /// Begins [`ProcessGroup::reduce_scatter`], as [`ProcessGroup::begin_all_reduce`] does.
    ///
    /// # Errors
    /// Errors of [`ProcessGroup::reduce_scatter`].
    fn begin_reduce_scatter(&self, values: &Array, lens: &[usize]) -> BegunResult {
        self.reduce_scatter(values, lens)?;
        Ok(over())
    }
}

/// Gathers a count of every rank, such as its number of rows.
///
/// # Errors
/// Errors of the transport.
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

/// Splits `len` rows evenly over `parts` ranks: rank `r` has rows `r·len/parts .. (r + 1)·len/parts`. The lengths
/// differ by at most one.
pub fn even_lens(len: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|part| (part + 1) * len / parts - part * len / parts).collect()
}
