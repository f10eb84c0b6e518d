//! Memory of a back end: made, filled, copied, and moved to and from the host.

use candle_core::{DType, Shape, Tensor};

use super::{Array, Arriving, Sent};
use crate::Result;

/// What a back end does with memory.
pub trait Memory {
    /// Copies the elements of an array to the host, and waits for them.
    ///
    /// # Errors
    /// If the array is of another back end.
    fn to_host(&self, array: &Array) -> Result<Tensor>;

    /// Begins to copy the elements of a floating-point array to the host, as f32, and does not wait for them: losses and measures
    /// are read when a device has long gone on. What is written to the array later does not change them.
    ///
    /// # Errors
    /// If the array is of another back end or of integers.
    fn begin_numbers(&self, array: &Array) -> Result<Arriving>;

    /// Begins to copy the elements of an array of f32 to the host beside what is computed, and does not wait for them. Nobody
    /// writes to the array any more.
    ///
    /// # Errors
    /// If the array is of another back end or element type.
    fn begin_moving_out(&self, array: &Array) -> Result<Arriving>;

    /// Begins to copy elements of the host to `to`, an array of as many of their type, beside what is computed; they were read when
    /// this returns. Nobody computes with `to` before [`Sent::arrive`].
    ///
    /// # Errors
    /// If the numbers of elements or their types differ, or they are neither f32 nor f64.
    fn begin_moving_in(&self, to: &Array, elements: &Tensor) -> Result<Sent>;

    /// Copies elements of the host to this back end's memory.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    #[expect(
        clippy::wrong_self_convention,
        reason = "the direction of a transfer, from the back end's point of view"
    )]
    fn from_host(&self, tensor: &Tensor) -> Result<Array>;

    /// Memory for elements of unspecified value, for whoever overwrites all of them before anybody reads one.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array>;

    /// An array whose elements are all `value`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn full(&self, value: f64, shape: &Shape, dtype: DType) -> Result<Array>;

    /// Says that what is computed next depends on a number that differs from step to step, such as a size: where steps are recorded,
    /// there is a recording for each. It computes nothing.
    ///
    /// # Errors
    /// If something else was recorded here.
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

    /// `to += addend`, of as many elements; sums of 16 bits are rounded once.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()>;

    /// The elements as another type; the array itself if it has that type.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn cast(&self, array: &Array, dtype: DType) -> Result<Array>;

    /// An array of its own with the same elements.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn duplicate(&self, array: &Array) -> Result<Array>;
}
