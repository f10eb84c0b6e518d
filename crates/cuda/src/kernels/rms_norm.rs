//! Root mean square normalisation of rows (Zhang & Sennrich 2019).

use super::grid::{
    THREADS, backward_suffix, check, check_float, check_len, launch, narrow_size, rows, rows_per_chunk,
};
use super::softmax::row_count;
use super::sources::{ROW_NORMS, SUMS};
use crate::{Gpu, Result, Slice};

/// Divides rows of `width` by √(mean x² + eps) and multiplies them by `gamma`, of the compute type. Returns the rows, and
/// 1/√(mean x² + eps).
///
/// # Errors
/// If lengths or types do not match.
pub fn rms_norm(gpu: &Gpu, x: &Slice, gamma: &Slice, width: usize, eps: f64) -> Result<[Slice; 2]> {
    const FUNCTION: &str = "rms_norm";
    check_float(FUNCTION, x.dtype())?;
    let (count, wide) = (row_count(FUNCTION, x, width)?, x.dtype().wide());
    check(FUNCTION, "gamma", gamma, wide, width)?;
    let (y, inv_rms) = (gpu.unwritten(x.dtype(), x.len())?, gpu.unwritten(wide, count)?);
    let (group, grid) = rows(count, width);
    launch(gpu, &ROW_NORMS, &format!("rms_norm_{group}_{}", x.dtype()), grid)
        .slice(x)
        .slice(gamma)
        .slice(&y)
        .slice(&inv_rms)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .number(eps)
        .run()?;
    Ok([y, inv_rms])
}

/// The arguments of [`rms_norm_backward`]. Weight and `inv_rms` are of the compute type.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormInputs<'a> {
    /// The input.
    pub x: &'a Slice,
    /// The output's gradient.
    pub dy: &'a Slice,
    /// The weight.
    pub gamma: &'a Slice,
    /// 1/√(mean x² + eps), as forward returned it.
    pub inv_rms: &'a Slice,
}

/// Computes the gradients of [`rms_norm`]: of the input, in dy's type, and of the weight, in the compute type. `before`, of dy's
/// type, is a gradient that the input has already: that of the input is the sum of both.
///
/// # Errors
/// If lengths or types do not match.
pub fn rms_norm_backward(
    gpu: &Gpu,
    from: RmsNormInputs<'_>,
    before: Option<&Slice>,
    width: usize,
) -> Result<[Slice; 2]> {
    const FUNCTION: &str = "rms_norm_backward";
    let RmsNormInputs { x, dy, gamma, inv_rms } = from;
    let (count, wide) = (row_count(FUNCTION, x, width)?, x.dtype().wide());
    check_len(FUNCTION, "dy", dy, x.len())?;
    before.map_or(Ok(()), |before| check(FUNCTION, "before", before, dy.dtype(), x.len()))?;
    check(FUNCTION, "gamma", gamma, wide, width)?;
    check(FUNCTION, "inv_rms", inv_rms, wide, count)?;
    let suffix = backward_suffix(FUNCTION, x.dtype(), dy.dtype())?;
    let small = narrow_size(FUNCTION, width)?;
    let dx = gpu.unwritten(dy.dtype(), x.len())?;
    if count == 0 {
        return Ok([dx, gpu.zeros(wide, width)?]);
    }
    let (group, grid) = rows(count, width);
    launch(gpu, &ROW_NORMS, &format!("rms_norm_backward_{group}_{suffix}"), grid)
        .slice(x)
        .slice(dy)
        .slice(gamma)
        .slice(inv_rms)
        .optional(before)
        .slice(&dx)
        .number(count as i64)
        .number(small)
        .run()?;
    let tiles = width.div_ceil(32);
    let per_chunk = rows_per_chunk(count, tiles);
    let chunks = count.div_ceil(per_chunk);
    let parts = gpu.unwritten(wide, chunks * width)?;
    launch(gpu, &ROW_NORMS, &format!("rms_norm_weight_{suffix}"), [tiles, chunks, 1])
        .blocks([tiles, chunks, 1], [32, THREADS / 32, 1])
        .slice(x)
        .slice(dy)
        .slice(inv_rms)
        .slice(&parts)
        .number(count as i64)
        .number(small)
        .number(per_chunk as i64)
        .run()?;
    let sums = gpu.unwritten(wide, width)?;
    launch(gpu, &SUMS, &format!("sum_columns_{wide}_{wide}"), [tiles, 1, 1])
        .blocks([tiles, 1, 1], [32, THREADS / 32, 1])
        .slice(&parts)
        .slice(&sums)
        .number(1_i64)
        .number(chunks as i64)
        .number(width as i64)
        .number(chunks as i64)
        .run()?;
    Ok([dx, sums])
}
