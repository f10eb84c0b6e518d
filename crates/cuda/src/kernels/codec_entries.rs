//! Sparse codecs of gradients: the k values of largest magnitude, values at random indices, and the residuals of the rest.
//!
//! The kernels run on [`Stream::Communication`], concurrently with compute. The indices of entries are bytes: their count and the
//! indices, u32 each. Their values are f32, at any address.

use std::ops::Range;

use super::grid::{check, check_type, launch, over};
use super::sources::CODEC_ENTRIES;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// The digit that each radix step counts: its shift and bits.
const DIGITS: usize = 2048;
const STEPS: [(i32, i32); 3] = [(20, 11), (10, 10), (0, 10)];

/// Values that a block counts before its next tile.
const TILE: usize = 4096;

/// The maximum of blocks that count digits: each adds its own counts.
const COUNTING: usize = 1024;

fn on<'a>(gpu: &'a Gpu, kernel: &'a str, count: usize, pack: usize) -> Launch<'a> {
    launch(gpu, &CODEC_ENTRIES, kernel, over(count, pack)).on(Stream::Communication)
}

/// Returns the bytes of the count and the indices of `entries` entries.
pub fn index_bytes(entries: usize) -> usize {
    4 + 4 * entries
}

/// Returns the u32 words of scratch memory of [`top_k`].
pub fn top_k_words(len: usize) -> usize {
    2 + DIGITS + 2 * len.div_ceil(TILE)
}

fn check_values(function: &'static str, values: &Slice) -> Result<()> {
    check_type(function, "values", values, ElementType::F32)?;
    match u32::try_from(values.len()) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(GpuError::unsupported(function, format!("{} numbers, more than u32 counts", values.len())))
        }
    }
}

/// Checks the indices and the values of `count` entries.
fn check_entries(function: &'static str, (indices, numbers): (&Slice, &Slice), count: usize) -> Result<()> {
    check(function, "indices", indices, ElementType::U8, index_bytes(count))?;
    if numbers.bytes() == 4 * count {
        return Ok(());
    }
    let problem = format!("{} bytes of numbers for {count} entries", numbers.bytes());
    Err(GpuError::argument(function, problem))
}

/// Writes the `count` values of largest magnitude with their ascending indices. Among equal values the lower indices are selected,
/// and NaN is larger than any value. `scratch` has [`top_k_words`] elements of u32.
///
/// # Errors
/// If there are fewer values, or more than u32 counts; if an array has another type or length.
pub fn top_k(
    gpu: &Gpu,
    (values, count): (&Slice, usize),
    (indices, numbers): (&Slice, &Slice),
    scratch: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "top_k";
    check_values(FUNCTION, values)?;
    check_entries(FUNCTION, (indices, numbers), count)?;
    let len = values.len();
    if count == 0 || count > len {
        return Err(GpuError::argument(FUNCTION, format!("the {count} largest of {len} numbers")));
    }
    check(FUNCTION, "scratch", scratch, ElementType::U32, top_k_words(len))?;
    let (threshold, counts) = (scratch.view(0..2)?, scratch.view(2..2 + DIGITS)?);
    let tiles = scratch.view(2 + DIGITS..scratch.len())?;
    counts.zero_on(Stream::Communication)?;
    on(gpu, "begin_threshold", 1, 1).blocks([1; 3], [1; 3]).slice(&threshold).number(count as u32).run()?;
    for (shift, bits) in STEPS {
        on(gpu, "count_digits_f32", 1, 1)
            .blocks([len.div_ceil(TILE).min(COUNTING), 1, 1], [256, 1, 1])
            .slice(values)
            .number(len as i64)
            .slice(&threshold)
            .slice(&counts)
            .number(shift)
            .number(bits)
            .run()?;
        on(gpu, "settle_digit_f32", 1, 1).slice(&counts).slice(&threshold).number(shift).run()?;
    }
    let number = len.div_ceil(TILE);
    let by_tiles = |kernel: &'static str| on(gpu, kernel, number * 256, 1);
    by_tiles("count_tiles_f32")
        .slice(values)
        .number(len as i64)
        .slice(&threshold)
        .slice(&tiles)
        .number(TILE as i64)
        .number(number as i64)
        .run()?;
    on(gpu, "sum_tiles_f32", 1, 1).slice(&tiles).number(number as i64).run()?;
    by_tiles("write_top_k_f32")
        .slice(values)
        .number(len as i64)
        .slice(&threshold)
        .slice(&tiles)
        .number(TILE as i64)
        .number(number as i64)
        .slice(indices)
        .slice(numbers)
        .number(count as u32)
        .run()
}

/// Adds the values of entries to the elements of `values` in a range.
///
/// # Errors
/// If an array has another type or length.
pub fn scatter(
    gpu: &Gpu,
    (indices, numbers): (&Slice, &Slice),
    count: usize,
    (values, range): (&Slice, Range<usize>),
) -> Result<()> {
    const FUNCTION: &str = "scatter";
    check_values(FUNCTION, values)?;
    check_entries(FUNCTION, (indices, numbers), count)?;
    values.view(range.clone())?;
    on(gpu, "scatter_f32", count, 1)
        .slice(indices)
        .slice(numbers)
        .slice(values)
        .number(range.start as i64)
        .number(range.end as i64)
        .run()
}

/// Subtracts the values of entries from `values`, or sets these elements to 0 if `numbers` is None. Does nothing if the flag
/// `invalid` is set ([`super::add_residual`]).
///
/// # Errors
/// If an array has another type or length.
pub fn subtract_entries(
    gpu: &Gpu,
    (indices, numbers): (&Slice, Option<&Slice>),
    count: usize,
    (values, invalid): (&Slice, &Slice),
) -> Result<()> {
    const FUNCTION: &str = "subtract_entries";
    check_values(FUNCTION, values)?;
    check(FUNCTION, "indices", indices, ElementType::U8, index_bytes(count))?;
    if let Some(numbers) = numbers {
        check_entries(FUNCTION, (indices, numbers), count)?;
    }
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    on(gpu, "subtract_entries_f32", count, 1)
        .slice(indices)
        .optional(numbers)
        .slice(values)
        .slice(invalid)
        .number(i32::from(numbers.is_none()))
        .number(count as i64)
        .run()
}

/// Copies `values` to `residual`, unless the flag `invalid` is set.
///
/// # Errors
/// If an array has another type or length.
pub fn store_residual(gpu: &Gpu, values: &Slice, invalid: &Slice, residual: &Slice) -> Result<()> {
    const FUNCTION: &str = "store_residual";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "residual", residual, ElementType::F32, values.len())?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    on(gpu, "store_residual_f32", values.len(), 4)
        .slice(values)
        .slice(residual)
        .slice(invalid)
        .number(values.len() as i64)
        .run()
}

/// Computes velocity ← momentum·velocity + gradients, sum ← sum + velocity, gradients ← sum. If a gradient is not finite, sets
/// the flag `invalid`, which must be 0 before, sets all gradients to NaN, and leaves the others unchanged.
///
/// # Errors
/// If an array has another type or length.
pub fn accumulate_momentum(
    gpu: &Gpu,
    gradients: &Slice,
    (velocity, sum): (&Slice, &Slice),
    momentum: f32,
    invalid: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "accumulate_momentum";
    check_type(FUNCTION, "gradients", gradients, ElementType::F32)?;
    for (name, slice) in [("velocity", velocity), ("sum", sum)] {
        check(FUNCTION, name, slice, ElementType::F32, gradients.len())?;
    }
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    let count = gradients.len();
    on(gpu, "flag_not_finite_f32", count, 4).slice(gradients).slice(invalid).number(count as i64).run()?;
    on(gpu, "accumulate_momentum_f32", count, 1)
        .slice(gradients)
        .slice(velocity)
        .slice(sum)
        .number(momentum)
        .slice(invalid)
        .number(count as i64)
        .run()
}

/// Random elements of an array, at the indices `phalanx_kernels::random_indices(draw, len, count)`.
#[derive(Debug, Clone, Copy)]
pub struct RandomEntries {
    /// The random stream.
    pub draw: u64,
    /// The number of elements.
    pub count: usize,
}

impl RandomEntries {
    fn check(self, function: &'static str, values: &Slice, numbers: &Slice) -> Result<()> {
        check_values(function, values)?;
        check(function, "numbers", numbers, ElementType::F32, self.count)?;
        self.check_count(function, values)
    }

    fn check_count(self, function: &'static str, values: &Slice) -> Result<()> {
        match self.count <= values.len() {
            true => Ok(()),
            false => Err(GpuError::argument(function, format!("{} of {} numbers", self.count, values.len()))),
        }
    }

    /// Copies the elements to `numbers`, in the order of indices.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn gather(self, gpu: &Gpu, values: &Slice, numbers: &Slice) -> Result<()> {
        self.check("gather_random", values, numbers)?;
        on(gpu, "gather_random_f32", self.count, 1)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .slice(numbers)
            .number(self.count as i64)
            .run()
    }

    /// Sets the elements to 0, unless the flag `invalid` is set.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn clear(self, gpu: &Gpu, values: &Slice, invalid: &Slice) -> Result<()> {
        const FUNCTION: &str = "clear_random";
        check_values(FUNCTION, values)?;
        self.check_count(FUNCTION, values)?;
        check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
        on(gpu, "clear_random_f32", self.count, 1)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .slice(invalid)
            .number(self.count as i64)
            .run()
    }

    /// Adds `numbers` to the elements that are in a range.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn add(self, gpu: &Gpu, numbers: &Slice, (values, range): (&Slice, Range<usize>)) -> Result<()> {
        self.check("add_random", values, numbers)?;
        values.view(range.clone())?;
        on(gpu, "add_random_f32", self.count, 1)
            .slice(numbers)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .number(range.start as i64)
            .number(range.end as i64)
            .number(self.count as i64)
            .run()
    }
}
