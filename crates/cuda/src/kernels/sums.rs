//! Sums over all elements, and over one dimension.

use super::grid::{THREADS, check_float, check_len, launch, pack, parts, rows, rows_per_chunk};
use super::sources::SUMS;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Sums f64 parts to a scalar, times `factor`.
pub(super) fn sum_of_parts(gpu: &Gpu, parts: &Slice, factor: f64, dtype: ElementType) -> Result<Slice> {
    let to = gpu.unwritten(dtype, 1)?;
    launch(gpu, &SUMS, &format!("sum_of_parts_{dtype}"), [1, 1, 1])
        .slice(parts)
        .number(parts.len() as i64)
        .number(factor)
        .slice(&to)
        .run()?;
    Ok(to)
}

/// Sums all elements in f64, times `factor`. Returns a scalar: f32 for 16-bit elements.
///
/// # Errors
/// If the elements are not floats.
pub fn sum_all(gpu: &Gpu, x: &Slice, factor: f64) -> Result<Slice> {
    check_float("sum_all", x.dtype())?;
    let count = parts(x.len(), pack(&[x.dtype()]));
    let parts = gpu.unwritten(ElementType::F64, count)?;
    launch(gpu, &SUMS, &format!("sum_parts_{}", x.dtype()), [count, 1, 1])
        .slice(x)
        .slice(&parts)
        .number(x.len() as i64)
        .run()?;
    sum_of_parts(gpu, &parts, factor, x.dtype().wide())
}

/// Sums over the middle dimension of `[outer, length, inner]`, as `dtype`: the type of the elements, their compute type, or 16
/// bits in place of f32.
///
/// # Errors
/// If the length is not that of the sizes, or the types do not match.
pub fn sum_over(
    gpu: &Gpu,
    x: &Slice,
    [outer, length, inner]: [usize; 3],
    dtype: ElementType,
) -> Result<Slice> {
    const FUNCTION: &str = "sum_over";
    check_len(FUNCTION, "x", x, outer * length * inner)?;
    let from = x.dtype();
    check_float(FUNCTION, from)?;
    if dtype != from && dtype != from.wide() && !(from == ElementType::F32 && dtype.is_half()) {
        return Err(GpuError::unsupported(FUNCTION, format!("sums of {from} as {dtype}")));
    }
    if length == 0 {
        return gpu.zeros(dtype, outer * inner);
    }
    let to = gpu.unwritten(dtype, outer * inner)?;
    if inner == 1 && length <= i32::MAX as usize {
        let (group, grid) = rows(outer, length);
        launch(gpu, &SUMS, &format!("sum_rows_{group}_{from}_{dtype}"), grid)
            .slice(x)
            .slice(&to)
            .number(outer as i64)
            .number(length as i32)
            .run()?;
        return Ok(to);
    }
    let tiles = inner.div_ceil(32);
    let per_chunk = rows_per_chunk(length, tiles * outer);
    let chunks = length.div_ceil(per_chunk);
    let columns = |x: &Slice, to: &Slice, length: usize, per_chunk: usize| {
        let grid = [tiles, length.div_ceil(per_chunk), outer.min(65_535)];
        launch(gpu, &SUMS, &format!("sum_columns_{}_{}", x.dtype(), to.dtype()), grid)
            .blocks(grid, [32, THREADS / 32, 1])
            .slice(x)
            .slice(to)
            .number(outer as i64)
            .number(length as i64)
            .number(inner as i64)
            .number(per_chunk as i64)
            .run()
    };
    if chunks == 1 {
        columns(x, &to, length, length)?;
        return Ok(to);
    }
    let parts = gpu.unwritten(from.wide(), outer * chunks * inner)?;
    columns(x, &parts, length, per_chunk)?;
    columns(&parts, &to, chunks, chunks)?;
    Ok(to)
}
