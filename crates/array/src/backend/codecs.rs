//! Compression of gradients and parameters on a device, between ranks.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::ChunkFormat;

use super::{Array, DeviceLowRank, Stopwatch, Upload};
use crate::Result;

/// Messages of consecutive parts of an array, packed in a device's memory.
#[derive(Debug, Clone, Copy)]
pub struct PackedMessages<'a> {
    /// The format of a message.
    pub format: ChunkFormat,
    /// The bytes.
    pub bytes: &'a Array,
    /// The distance in bytes from one message to the next: at least [`ChunkCodecs::stride`].
    pub stride: usize,
}

/// The queue of codec work on a device, concurrent with its computing.
///
/// Codec work starts after the computing queued before [`CodecQueue::begin`]. Computing does not wait for it before the
/// transfer of [`CodecQueue::done`] is waited for. The caller keeps the arrays until then.
pub trait CodecQueue {
    /// Makes later codec work wait for all computing queued so far.
    ///
    /// # Errors
    /// Errors of the back end.
    fn begin(&self) -> Result<()>;

    /// Returns a transfer whose `wait` makes later computing wait for all codec work queued so far.
    ///
    /// # Errors
    /// Errors of the back end.
    fn done(&self) -> Result<Upload>;

    /// Returns a stopwatch of codec work and computing.
    ///
    /// # Errors
    /// If the device has no timers.
    fn stopwatch(&self) -> Result<Box<dyn Stopwatch>>;

    /// Allocates a flat array of unspecified elements.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn room(&self, len: usize, dtype: DType) -> Result<Array>;

    /// Sets every element to zero.
    ///
    /// # Errors
    /// Errors of the back end.
    fn clear(&self, to: &Array) -> Result<()>;

    /// Overwrites elements with as many of the same type.
    ///
    /// # Errors
    /// If numbers of elements or types differ.
    fn copy(&self, to: &Array, from: &Array) -> Result<()>;

    /// Overwrites elements with as many of another type, each rounded once.
    ///
    /// # Errors
    /// If numbers of elements differ, or the conversion is not supported.
    fn convert(&self, to: &Array, from: &Array) -> Result<()>;
}

/// Codecs of dense messages.
pub trait ChunkCodecs {
    /// The distance in bytes from one message to the next, for `len` elements in `parts`.
    fn stride(&self, format: ChunkFormat, len: usize, parts: usize) -> usize;

    /// Writes a message for each of `parts` parts of `values`; part `p` of `P` has elements `p·len/P .. (p +
    /// 1)·len/P`. The random numbers of part `p` are those of the stream `mixed_with(draw.0, draw.1 + p)` of
    /// `phalanx-kernels`.
    ///
    /// # Errors
    /// If the memory of messages has the wrong size.
    fn encode(&self, of: (&Array, usize), draw: (u64, u64), messages: PackedMessages<'_>) -> Result<()>;

    /// Overwrites each of `parts` parts of an array with the sum of its `sources` consecutive messages, added in f32
    /// in their order.
    ///
    /// # Errors
    /// If the memory of messages has the wrong size.
    fn decode(&self, messages: PackedMessages<'_>, of: (usize, usize), to: &Array) -> Result<()>;

    /// Writes the encoding errors of the parts of `values` to `to`. Leaves `to` unchanged if `spoiled` is set: the
    /// values are not finite.
    ///
    /// # Errors
    /// If lengths do not match.
    fn errors(
        &self,
        messages: PackedMessages<'_>,
        of: (&Array, usize),
        spoiled: &Array,
        to: &Array,
    ) -> Result<()>;
}

/// Error feedback and momentum correction.
pub trait FeedbackCodecs {
    /// Adds the residual of error feedback to values. Returns a flag of u32: 0 if all sums are finite. Otherwise all
    /// sums become NaN.
    ///
    /// # Errors
    /// If lengths differ.
    fn feed_back(&self, values: &Array, held: &Array) -> Result<Array>;

    /// Overwrites the residual with the values. Leaves it unchanged if `spoiled` is set: the values are not finite.
    ///
    /// # Errors
    /// If lengths differ.
    fn hold(&self, values: &Array, spoiled: &Array, held: &Array) -> Result<()>;

    /// Computes velocity ← momentum·velocity + gradients and sum ← sum + velocity, and replaces the gradients with
    /// the sum (Lin et al. 2018). Returns a flag as [`FeedbackCodecs::feed_back`] does. If gradients are not finite,
    /// they become NaN and the others stay.
    ///
    /// # Errors
    /// If lengths differ.
    fn gather_momentum(&self, gradients: &Array, of: (&Array, &Array), momentum: f32) -> Result<Array>;
}

/// Codecs of sparse messages: the largest elements, or random ones.
pub trait SparseCodecs {
    /// Size of the count and the indices of `entries` entries, in bytes.
    fn index_bytes(&self, entries: usize) -> usize;

    /// Selects the `taken` elements of largest magnitude, the lower index first among equals. Writes their number and
    /// their ascending indices to bytes, and the elements to f32 or bytes. Returns scratch memory that must live
    /// until the work is done.
    ///
    /// # Errors
    /// If there are fewer elements, or the memory has the wrong size.
    fn largest(&self, of: (&Array, usize), to: (&Array, &Array)) -> Result<Array>;

    /// Adds the entries whose index is in a range to the elements of `values`.
    ///
    /// # Errors
    /// If the memory does not match the number of entries.
    fn scatter(&self, entries: (&Array, &Array), taken: usize, to: (&Array, Range<usize>)) -> Result<()>;

    /// Subtracts entries from values, or sets those values to 0 if there are only indices; does nothing if they are
    /// spoiled.
    ///
    /// # Errors
    /// If the memory does not match the number of entries.
    fn take_away(&self, entries: (&Array, Option<&Array>), taken: usize, of: (&Array, &Array)) -> Result<()>;

    /// Copies values at the indices `random_indices(draw, values, numbers)` of `phalanx-kernels` to `numbers`.
    ///
    /// # Errors
    /// If there are fewer values.
    fn take_drawn(&self, draw: u64, values: &Array, numbers: &Array) -> Result<()>;

    /// Sets values at `taken` random indices to 0, unless they are spoiled.
    ///
    /// # Errors
    /// If there are fewer values.
    fn clear_drawn(&self, draw: u64, taken: usize, of: (&Array, &Array)) -> Result<()>;

    /// Adds numbers to the values at those random indices that are in a range.
    ///
    /// # Errors
    /// If there are fewer values.
    fn put_drawn(&self, draw: u64, numbers: &Array, to: (&Array, Range<usize>)) -> Result<()>;
}

/// All codecs of a device.
///
/// Flat arrays of f32 are encoded to messages and decoded again, on a stream of their own, in the order of the calls.
/// On the host codecs are the kernels of `phalanx-kernels`, on slices; messages have the same bytes.
pub trait DeviceCodecs: CodecQueue + ChunkCodecs + FeedbackCodecs + SparseCodecs + DeviceLowRank {}

impl<T: CodecQueue + ChunkCodecs + FeedbackCodecs + SparseCodecs + DeviceLowRank> DeviceCodecs for T {}

impl Array {
    /// The codecs of the device that holds the array; `None` on the host, or if the device has none.
    pub fn codecs(&self) -> Option<&dyn DeviceCodecs> {
        self.device_backend().and_then(super::ArrayBackend::codecs)
    }
}
