//! Embedding lookups.

use candle_core::{DType, Shape};

use super::{Array, Destination};
use crate::Result;

/// Embedding lookups on a back end. Indices are u32.
pub trait Lookups {
    /// Returns the `len` numbers start, start + step, …
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array>;

    /// Returns rows `ids` of a table [V, C] under `shape`, stored as `dtype`.
    ///
    /// # Errors
    /// If the element type is not supported; and, where the back end can tell without waiting, if an id is not below
    /// V.
    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array>;

    /// Writes the gradient of a table [V, C] from the gradient `dy` of the looked-up rows.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn embedding_backward(&self, dy: &Array, ids: &Array, to: &Destination) -> Result<()>;
}
