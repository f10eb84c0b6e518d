//! What a device does to gradients and parameters on their way between ranks.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::ChunkFormat;

use super::{Array, DeviceLowRank, Sent, Stopwatch};
use crate::Result;

/// Messages of the parts of some numbers, in one piece of a device's memory.
#[derive(Debug, Clone, Copy)]
pub struct PackedMessages<'a> {
    /// What a message is.
    pub format: ChunkFormat,
    /// The bytes.
    pub bytes: &'a Array,
    /// Where each message begins after the one before: at least what [`DeviceCodecs::stride`] says.
    pub stride: usize,
}

/// Codecs on a device: flat arrays of f32 become messages and numbers again, beside what is computed, in the order in which they are
/// given. What is done here begins after what was computed until [`DeviceCodecs::begin`], and nothing that is computed waits for it
/// before [`DeviceCodecs::done`] is told to arrive: whoever gives arrays keeps them until then.
///
/// On the host codecs are the kernels of `phalanx-kernels`, on slices; messages have the same bytes.
pub trait DeviceCodecs: DeviceLowRank {
    /// Lets what follows begin after what was computed until now.
    ///
    /// # Errors
    /// The back end's.
    fn begin(&self) -> Result<()>;

    /// What finds all that was done until now.
    ///
    /// # Errors
    /// The back end's.
    fn done(&self) -> Result<Sent>;

    /// What notes when this work, and what is computed, is done.
    ///
    /// # Errors
    /// If the device does not tell times.
    fn stopwatch(&self) -> Result<Box<dyn Stopwatch>>;

    /// A flat array of unspecified elements.
    ///
    /// # Errors
    /// If there is no such memory.
    fn room(&self, len: usize, dtype: DType) -> Result<Array>;

    /// Sets every element to zero.
    ///
    /// # Errors
    /// The back end's.
    fn clear(&self, to: &Array) -> Result<()>;

    /// Overwrites elements by as many of the same type.
    ///
    /// # Errors
    /// If numbers of elements or types differ.
    fn place(&self, to: &Array, from: &Array) -> Result<()>;

    /// Overwrites elements by as many of another type, each rounded once.
    ///
    /// # Errors
    /// If numbers of elements differ, or there is no such conversion.
    fn convert(&self, to: &Array, from: &Array) -> Result<()>;

    /// Bytes from one message to the next where `len` numbers are in `parts`.
    fn stride(&self, format: ChunkFormat, len: usize, parts: usize) -> usize;

    /// Writes a message for each of `parts` parts of `values`, part `p` of `P` being elements `p·len/P .. (p + 1)·len/P`. Random
    /// numbers of part `p` are those of the stream `mixed_with(draw.0, draw.1 + p)` of `phalanx-kernels`.
    ///
    /// # Errors
    /// If the memory of messages is not what they take.
    fn encode(&self, of: (&Array, usize), draw: (u64, u64), messages: PackedMessages<'_>) -> Result<()>;

    /// Overwrites each of `parts` parts of an array by what `sources` messages say of it, which follow each other, added up in f32
    /// in their order.
    ///
    /// # Errors
    /// If the memory of messages is not what they take.
    fn decode(&self, messages: PackedMessages<'_>, of: (usize, usize), to: &Array) -> Result<()>;

    /// Overwrites `to` by what the messages of the parts of `values` have taken from these; leaves it as it is where `spoiled` says
    /// that the values are not finite.
    ///
    /// # Errors
    /// If lengths do not go together.
    fn errors(
        &self,
        messages: PackedMessages<'_>,
        of: (&Array, usize),
        spoiled: &Array,
        to: &Array,
    ) -> Result<()>;

    /// Adds to values what was held back of them, and says whether all sums are finite: a flag of u32, 0 if they are. If they are not
    /// all become NaN.
    ///
    /// # Errors
    /// If lengths differ.
    fn feed_back(&self, values: &Array, held: &Array) -> Result<Array>;

    /// Overwrites what is held by the values; leaves it as it is where `spoiled` says that these are not finite.
    ///
    /// # Errors
    /// If lengths differ.
    fn hold(&self, values: &Array, spoiled: &Array, held: &Array) -> Result<()>;

    /// velocity ← momentum·velocity + gradients, sum ← sum + velocity, and the gradients become the sum (Lin et al. 2018). Says whether
    /// the gradients were finite, as [`DeviceCodecs::feed_back`] does; if not they become NaN and the others stay.
    ///
    /// # Errors
    /// If lengths differ.
    fn gather_momentum(&self, gradients: &Array, of: (&Array, &Array), momentum: f32) -> Result<Array>;

    /// Bytes of the count and the indices of so many entries.
    fn index_bytes(&self, entries: usize) -> usize;

    /// Writes the `taken` numbers of largest magnitude, of which the lower indices among equal ones: how many they are and their
    /// indices, rising, to bytes, and the numbers to f32 or bytes. What it has worked in is not to be freed before that is done.
    ///
    /// # Errors
    /// If there are not so many numbers, or the memory is not what they take.
    fn largest(&self, of: (&Array, usize), to: (&Array, &Array)) -> Result<Array>;

    /// Adds the numbers of entries to those of `values` that they belong to and that lie in a range.
    ///
    /// # Errors
    /// If the memory is not what so many entries take.
    fn scatter(&self, entries: (&Array, &Array), taken: usize, to: (&Array, Range<usize>)) -> Result<()>;

    /// Takes the numbers of entries away from values, or without numbers makes those 0, unless they are spoiled.
    ///
    /// # Errors
    /// If the memory is not what so many entries take.
    fn take_away(&self, entries: (&Array, Option<&Array>), taken: usize, of: (&Array, &Array)) -> Result<()>;

    /// Copies numbers at the indices `random_indices(draw, values, numbers)` of `phalanx-kernels`.
    ///
    /// # Errors
    /// If there are more of them than values.
    fn take_drawn(&self, draw: u64, values: &Array, numbers: &Array) -> Result<()>;

    /// Makes values at `taken` such indices 0, unless they are spoiled.
    ///
    /// # Errors
    /// If there are more of them than values.
    fn clear_drawn(&self, draw: u64, taken: usize, of: (&Array, &Array)) -> Result<()>;

    /// Adds numbers to values at such indices that lie in a range.
    ///
    /// # Errors
    /// If there are more of them than values.
    fn put_drawn(&self, draw: u64, numbers: &Array, to: (&Array, Range<usize>)) -> Result<()>;
}
