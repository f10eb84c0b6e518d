//! Checks of arguments, and grids that depend on sizes alone.

use super::sources::Family;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Threads of a block in nearly all kernels.
pub(super) const THREADS: usize = 256;

/// The maximum of blocks of an elementwise kernel: more than any GPU runs at once.
const MOST_BLOCKS: usize = 1 << 16;

/// The maximum of parts of a sum over all elements.
const MOST_PARTS: usize = 1024;

/// The longest row that one warp handles.
const WARP_WIDTH: usize = 1024;

/// Returns the elements that a thread moves at a time: 16 bytes of the smallest type, as `PackOf` of the prelude.
pub(super) fn pack(types: &[ElementType]) -> usize {
    match types.iter().map(|dtype| dtype.size()).min().unwrap_or(16) {
        8 => 1,
        smallest => 16 / smallest,
    }
}

/// Returns the grid of a kernel over `count` elements, `pack` at a time.
pub(super) fn over(count: usize, pack: usize) -> [usize; 3] {
    [count.div_ceil(THREADS * pack).min(MOST_BLOCKS), 1, 1]
}

/// Returns the parts of a sum over `count` elements, one block for each.
pub(super) fn parts(count: usize, pack: usize) -> usize {
    count.div_ceil(THREADS * pack * 4).clamp(1, MOST_PARTS)
}

/// Returns the grid of a kernel with a warp for each of `count` rows or channels.
pub(super) fn warps(count: usize) -> [usize; 3] {
    [count.div_ceil(THREADS / 32).min(MOST_BLOCKS), 1, 1]
}

/// Returns the kernel name and the grid for rows of `width`: a warp or a block for each.
pub(super) fn rows(rows: usize, width: usize) -> (&'static str, [usize; 3]) {
    if width <= WARP_WIDTH { ("warp", warps(rows)) } else { ("block", [rows.min(MOST_BLOCKS), 1, 1]) }
}

/// Returns the rows of a chunk, of `length` rows. Chunks and `tiles` tiles of columns fill a GPU, and chunks are not shorter than
/// a block is high.
pub(super) fn rows_per_chunk(length: usize, tiles: usize) -> usize {
    length.div_ceil((2048 / tiles.max(1)).clamp(1, 1024)).max(64)
}

/// Returns a launch with [`THREADS`] threads a block.
pub(super) fn launch<'a>(
    gpu: &'a Gpu,
    family: &'static Family,
    kernel: &'a str,
    grid: [usize; 3],
) -> Launch<'a> {
    Launch::of(gpu, family.of(kernel), kernel).blocks(grid, [THREADS, 1, 1])
}

/// Checks the length of an argument.
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

/// Checks the type of an argument.
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

/// Checks the type and the length of an argument.
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

/// Checks that a type is a float.
pub(super) fn check_float(function: &'static str, dtype: ElementType) -> Result<()> {
    match dtype {
        ElementType::F32 | ElementType::F64 | ElementType::Bf16 | ElementType::F16 => Ok(()),
        other => Err(GpuError::unsupported(function, other.to_string())),
    }
}

/// Returns the suffix of backward kernels: the type of activations, and that of gradients, which is the same or the compute type.
pub(super) fn backward_suffix(function: &'static str, x: ElementType, grad: ElementType) -> Result<String> {
    check_float(function, x)?;
    if grad == x || grad == x.wide() {
        return Ok(format!("{x}_{grad}"));
    }
    Err(GpuError::unsupported(function, format!("{x} with gradients of {grad}")))
}

/// Converts a size to 32 bits.
pub(super) fn narrow_size(function: &'static str, size: usize) -> Result<i32> {
    i32::try_from(size)
        .map_err(|_| GpuError::unsupported(function, format!("a size of {size}, of at most {}", i32::MAX)))
}
