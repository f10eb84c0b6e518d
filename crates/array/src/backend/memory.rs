//! Memory of a back end: allocation, copies, and transfers to and from the host.

use candle_core::{DType, Shape, Tensor};

use super::{Array, Download, Upload};
use crate::Result;

/// Copies between the host and a back end's memory.
pub trait Transfers {
    /// Copies the elements of an array to the host, and waits for them.
    ///
    /// # Errors
    /// If the array is of another back end.
    fn to_host(&self, array: &Array) -> Result<Tensor>;

    /// Begins to copy the elements of a floating-point array to the host, as f32, without waiting: losses and
    /// measures are read later. Later writes to the array do not change the copy.
    ///
    /// # Errors
    /// If the array is of another back end or of integers.
    fn begin_snapshot(&self, array: &Array) -> Result<Download>;

    /// Begins to copy the elements of an f32 array to the host while the device computes, without waiting. The caller
    /// must not write to the array any more.
    ///
    /// # Errors
    /// If the array is of another back end or element type.
    fn begin_download(&self, array: &Array) -> Result<Download>;

    /// Begins to copy elements of the host to `to`, an array of as many of their type, while the device computes. The
    /// elements have been read when this returns. The caller must not compute with `to` before [`Upload::wait`].
    ///
    /// # Errors
    /// If the numbers of elements or their types differ, or they are neither f32 nor f64.
    fn begin_upload(&self, to: &Array, elements: &Tensor) -> Result<Upload>;

    /// Copies elements of the host to this back end's memory.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    #[expect(
        clippy::wrong_self_convention,
        reason = "the direction of a transfer, from the back end's point of view"
    )]
    fn from_host(&self, tensor: &Tensor) -> Result<Array>;
}

/// Allocation and copies within a back end's memory.
pub trait Memory {
    /// Allocates elements of unspecified value. The caller must write every element before reading one.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array>;

    /// Makes an array whose elements are all `value`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn full(&self, value: f64, shape: &Shape, dtype: DType) -> Result<Array>;

    /// Selects the graph capture by a number that differs from step to step, such as a size. Does nothing unless
    /// steps are captured.
    ///
    /// # Errors
    /// If the captured work differs.
    fn branch(&self, number: u64) -> Result<()>;

    /// Sets every element of `to` to zero.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn zero(&self, to: &Array) -> Result<()>;

    /// Copies the elements of `from` to `to`, which has as many, converting their type.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    fn copy(&self, to: &Array, from: &Array) -> Result<()>;

    /// Computes `to += addend`, of as many elements; sums of 16 bits are rounded once.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()>;

    /// Converts the elements to another type; returns the array itself if it has that type.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn cast(&self, array: &Array, dtype: DType) -> Result<Array>;

    /// Copies the array to memory of its own.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn duplicate(&self, array: &Array) -> Result<Array>;
}
