//! Rows looked up by index.

use candle_core::{DType, Shape};

use super::Array;
use crate::Result;

/// How a back end looks rows up. Indices are u32.
pub trait Lookups {
    /// The numbers start, start + step, … , `len` of them.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array>;

    /// Rows `ids` of a table [V, C] under `shape`, stored as `dtype`.
    ///
    /// # Errors
    /// If the element type is not supported; and, where the back end can tell without waiting, if an id is not below V.
    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array>;

    /// The gradient of a table of `rows` rows from that of what was looked up, of type `dtype`.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn embedding_backward(&self, dy: &Array, ids: &Array, rows: usize, dtype: DType) -> Result<Array>;
}
