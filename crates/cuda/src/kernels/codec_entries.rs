//! Gradients on their way between ranks: the largest of many numbers with their indices, numbers at indices that are drawn, and what is
//! kept of those that are not sent.
//!
//! These run on [`Stream::Communication`], beside what is computed. Entries are bytes: how many there are and their indices, of u32
//! each, and their numbers, of f32 each, wherever those lie.

use std::ops::Range;

use super::grid::{check, check_type, launch, over};
use super::sources::CODEC_ENTRIES;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// Digits of magnitudes that are counted at a time, and the bits of each.
const DIGITS: usize = 2048;
const STEPS: [(i32, i32); 3] = [(20, 11), (10, 10), (0, 10)];

/// Numbers that a block counts before it goes on to the next tile.
const TILE: usize = 4096;

/// Blocks at most that count digits: each has counts of its own to add.
const COUNTING: usize = 1024;

fn on<'a>(gpu: &'a Gpu, kernel: &'a str, count: usize, pack: usize) -> Launch<'a> {
    launch(gpu, &CODEC_ENTRIES, kernel, over(count, pack)).on(Stream::Communication)
}

/// Bytes of so many entries' count and indices.
pub fn index_bytes(entries: usize) -> usize {
    4 + 4 * entries
}

/// Words of u32 that [`largest`] works in, for so many numbers.
pub fn largest_words(len: usize) -> usize {
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

/// Fails unless these are indices and numbers of `taken` entries.
fn check_entries(function: &'static str, (indices, numbers): (&Slice, &Slice), taken: usize) -> Result<()> {
    check(function, "indices", indices, ElementType::U8, index_bytes(taken))?;
    if numbers.bytes() == 4 * taken {
        return Ok(());
    }
    let problem = format!("{} bytes of numbers for {taken} entries", numbers.bytes());
    Err(GpuError::argument(function, problem))
}

/// Writes the `taken` numbers of largest magnitude with their indices, which rise; among equal ones the lower indices are taken. NaN
/// counts as larger than anything. `scratch` has [`largest_words`] of u32.
///
/// # Errors
/// If there are not so many numbers, or more than u32 counts; if an array has another type or length.
pub fn largest(
    gpu: &Gpu,
    (values, taken): (&Slice, usize),
    (indices, numbers): (&Slice, &Slice),
    scratch: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "largest";
    check_values(FUNCTION, values)?;
    check_entries(FUNCTION, (indices, numbers), taken)?;
    let len = values.len();
    if taken == 0 || taken > len {
        return Err(GpuError::argument(FUNCTION, format!("the {taken} largest of {len} numbers")));
    }
    check(FUNCTION, "scratch", scratch, ElementType::U32, largest_words(len))?;
    let (threshold, counts) = (scratch.view(0..2)?, scratch.view(2..2 + DIGITS)?);
    let tiles = scratch.view(2 + DIGITS..scratch.len())?;
    counts.zero_on(Stream::Communication)?;
    on(gpu, "begin_threshold", 1, 1).blocks([1; 3], [1; 3]).slice(&threshold).number(taken as u32).run()?;
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
    by_tiles("write_largest_f32")
        .slice(values)
        .number(len as i64)
        .slice(&threshold)
        .slice(&tiles)
        .number(TILE as i64)
        .number(number as i64)
        .slice(indices)
        .slice(numbers)
        .number(taken as u32)
        .run()
}

/// Adds the numbers of `taken` entries to those of `values` that they belong to and that lie in a range.
///
/// # Errors
/// If an array has another type or length.
pub fn scatter(
    gpu: &Gpu,
    (indices, numbers): (&Slice, &Slice),
    taken: usize,
    (values, range): (&Slice, Range<usize>),
) -> Result<()> {
    const FUNCTION: &str = "scatter";
    check_values(FUNCTION, values)?;
    check_entries(FUNCTION, (indices, numbers), taken)?;
    values.view(range.clone())?;
    on(gpu, "scatter_f32", taken, 1)
        .slice(indices)
        .slice(numbers)
        .slice(values)
        .number(range.start as i64)
        .number(range.end as i64)
        .run()
}

/// Takes the numbers of `taken` entries away from `values`, or with no numbers makes those 0; not if they are spoiled
/// ([`super::feed_back`]).
///
/// # Errors
/// If an array has another type or length.
pub fn take_away(
    gpu: &Gpu,
    (indices, numbers): (&Slice, Option<&Slice>),
    taken: usize,
    (values, spoiled): (&Slice, &Slice),
) -> Result<()> {
    const FUNCTION: &str = "take_away";
    check_values(FUNCTION, values)?;
    check(FUNCTION, "indices", indices, ElementType::U8, index_bytes(taken))?;
    if let Some(numbers) = numbers {
        check_entries(FUNCTION, (indices, numbers), taken)?;
    }
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    on(gpu, "take_away_f32", taken, 1)
        .slice(indices)
        .optional(numbers)
        .slice(values)
        .slice(spoiled)
        .number(i32::from(numbers.is_none()))
        .number(taken as i64)
        .run()
}

/// Overwrites `held` by `values`, unless these are spoiled.
///
/// # Errors
/// If an array has another type or length.
pub fn hold(gpu: &Gpu, values: &Slice, spoiled: &Slice, held: &Slice) -> Result<()> {
    const FUNCTION: &str = "hold";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "held", held, ElementType::F32, values.len())?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    on(gpu, "hold_f32", values.len(), 4)
        .slice(values)
        .slice(held)
        .slice(spoiled)
        .number(values.len() as i64)
        .run()
}

/// velocity ← momentum·velocity + gradients, sum ← sum + velocity, and the gradients become the sum. If one of them is not finite the flag
/// `spoiled`, which is 0 before, becomes 1, all become NaN, and the others stay.
///
/// # Errors
/// If an array has another type or length.
pub fn gather_momentum(
    gpu: &Gpu,
    gradients: &Slice,
    (velocity, sum): (&Slice, &Slice),
    momentum: f32,
    spoiled: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "gather_momentum";
    check_type(FUNCTION, "gradients", gradients, ElementType::F32)?;
    for (name, held) in [("velocity", velocity), ("sum", sum)] {
        check(FUNCTION, name, held, ElementType::F32, gradients.len())?;
    }
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    let count = gradients.len();
    on(gpu, "find_spoiled_f32", count, 4).slice(gradients).slice(spoiled).number(count as i64).run()?;
    on(gpu, "gather_momentum_f32", count, 1)
        .slice(gradients)
        .slice(velocity)
        .slice(sum)
        .number(momentum)
        .slice(spoiled)
        .number(count as i64)
        .run()
}

/// Some of many numbers, at the indices `phalanx_kernels::random_indices(draw, len, taken)`.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// The stream that they are drawn from.
    pub draw: u64,
    /// How many.
    pub taken: usize,
}

impl Drawn {
    fn check(self, function: &'static str, values: &Slice, numbers: &Slice) -> Result<()> {
        check_values(function, values)?;
        check(function, "numbers", numbers, ElementType::F32, self.taken)?;
        self.check_taken(function, values)
    }

    fn check_taken(self, function: &'static str, values: &Slice) -> Result<()> {
        match self.taken <= values.len() {
            true => Ok(()),
            false => Err(GpuError::argument(function, format!("{} of {} numbers", self.taken, values.len()))),
        }
    }

    /// Copies them to `numbers`, in the order of indices.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn take(self, gpu: &Gpu, values: &Slice, numbers: &Slice) -> Result<()> {
        self.check("take_drawn", values, numbers)?;
        on(gpu, "take_drawn_f32", self.taken, 1)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .slice(numbers)
            .number(self.taken as i64)
            .run()
    }

    /// Makes them 0, unless they are spoiled.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn clear(self, gpu: &Gpu, values: &Slice, spoiled: &Slice) -> Result<()> {
        const FUNCTION: &str = "clear_drawn";
        check_values(FUNCTION, values)?;
        self.check_taken(FUNCTION, values)?;
        check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
        on(gpu, "clear_drawn_f32", self.taken, 1)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .slice(spoiled)
            .number(self.taken as i64)
            .run()
    }

    /// Adds numbers to those of them that lie in a range.
    ///
    /// # Errors
    /// If an array has another type or length.
    pub fn put(self, gpu: &Gpu, numbers: &Slice, (values, range): (&Slice, Range<usize>)) -> Result<()> {
        self.check("put_drawn", values, numbers)?;
        values.view(range.clone())?;
        on(gpu, "put_drawn_f32", self.taken, 1)
            .slice(numbers)
            .slice(values)
            .number(values.len() as i64)
            .number(self.draw)
            .number(range.start as i64)
            .number(range.end as i64)
            .number(self.taken as i64)
            .run()
    }
}
