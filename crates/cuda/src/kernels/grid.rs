//! What launchers have in common: checks, and grids that follow from sizes.

use super::sources::Family;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Threads of a block, of nearly all kernels.
pub(super) const THREADS: usize = 256;

/// Blocks at most of kernels that walk over elements: more than any GPU runs at once.
const MOST_BLOCKS: usize = 1 << 16;

/// Parts at most that a sum over all elements is made of.
const MOST_PARTS: usize = 1024;

/// Rows up to which a warp has one for itself.
const WARP_WIDTH: usize = 1024;

/// Elements that a thread moves at a time: 16 bytes of the smallest type, as `PackOf` of the prelude.
pub(super) fn pack(types: &[ElementType]) -> usize {
    match types.iter().map(|dtype| dtype.size()).min().unwrap_or(16) {
        8 => 1,
        smallest => 16 / smallest,
    }
}

/// The grid of a kernel that walks over `count` elements, `pack` at a time.
pub(super) fn over(count: usize, pack: usize) -> [usize; 3] {
    [count.div_ceil(THREADS * pack).min(MOST_BLOCKS), 1, 1]
}

/// How many parts a sum over `count` elements is made of, a block for each.
pub(super) fn parts(count: usize, pack: usize) -> usize {
    count.div_ceil(THREADS * pack * 4).clamp(1, MOST_PARTS)
}

/// The grid of a kernel with a warp for each of `count` rows or channels.
pub(super) fn warps(count: usize) -> [usize; 3] {
    [count.div_ceil(THREADS / 32).min(MOST_BLOCKS), 1, 1]
}

/// Whether rows of `width` get a warp each or a block each: what kernels are called after, and their grid.
pub(super) fn rows(rows: usize, width: usize) -> (&'static str, [usize; 3]) {
    if width <= WARP_WIDTH { ("warp", warps(rows)) } else { ("block", [rows.min(MOST_BLOCKS), 1, 1]) }
}

/// How many of `length` rows a chunk has, so that `tiles` tiles of columns give all of a GPU something to do, and chunks are
/// not shorter than a block is high.
pub(super) fn rows_per_chunk(length: usize, tiles: usize) -> usize {
    length.div_ceil((2048 / tiles.max(1)).clamp(1, 1024)).max(64)
}

/// A launch of a kernel with [`THREADS`] threads a block.
pub(super) fn launch<'a>(
    gpu: &'a Gpu,
    family: &'static Family,
    kernel: &'a str,
    grid: [usize; 3],
) -> Launch<'a> {
    Launch::of(gpu, family.of(kernel), kernel).blocks(grid, [THREADS, 1, 1])
}

/// Fails unless an argument has as many elements as it should.
pub(super) fn check_len(
    function: &'static str,
    argument: &str,
    slice: &Slice,
    expected: usize,
) -> Result<()> {
    if slice.len() == expected {
        return Ok(());
    }
    Err(GpuError::argument(
        function,
        format!("`{argument}` has {} elements; it should have {expected}", slice.len()),
    ))
}

/// Fails unless an argument is of a type.
pub(super) fn check_type(
    function: &'static str,
    argument: &str,
    slice: &Slice,
    expected: ElementType,
) -> Result<()> {
    if slice.dtype() == expected {
        return Ok(());
    }
    Err(GpuError::argument(
        function,
        format!("`{argument}` is of {}; it should be of {expected}", slice.dtype()),
    ))
}

/// Fails unless an argument is of a type and has as many elements as it should.
pub(super) fn check(
    function: &'static str,
    argument: &str,
    slice: &Slice,
    expected: ElementType,
    len: usize,
) -> Result<()> {
    check_type(function, argument, slice, expected)?;
    check_len(function, argument, slice, len)
}

/// Fails unless the type is one of floats.
pub(super) fn check_float(function: &'static str, dtype: ElementType) -> Result<()> {
    match dtype {
        ElementType::F32 | ElementType::F64 | ElementType::Bf16 | ElementType::F16 => Ok(()),
        other => Err(GpuError::unsupported(function, other.to_string())),
    }
}

/// The suffix of kernels that go backward: the type of activations, and that of gradients, which is the same or the wide one.
pub(super) fn backward_suffix(function: &'static str, x: ElementType, grad: ElementType) -> Result<String> {
    check_float(function, x)?;
    if grad == x || grad == x.wide() {
        return Ok(format!("{x}_{grad}"));
    }
    Err(GpuError::unsupported(function, format!("{x} with gradients of {grad}")))
}

/// A size as kernels take it where 32 bits do.
pub(super) fn narrow_size(function: &'static str, size: usize) -> Result<i32> {
    i32::try_from(size)
        .map_err(|_| GpuError::unsupported(function, format!("a size of {size}, of at most {}", i32::MAX)))
}
