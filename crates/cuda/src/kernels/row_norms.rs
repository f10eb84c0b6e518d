//! Layer normalisation and L2 normalisation of rows.

use super::grid::{
    THREADS, backward_suffix, check, check_float, check_len, launch, narrow_size, rows, rows_per_chunk, warps,
};
use super::softmax::row_count;
use super::sources::{ROW_NORMS, SUMS};
use crate::{ElementType, Gpu, Result, Slice};

/// The arguments of the backward of a layer or group norm. Statistics and weights are of the compute type.
#[derive(Debug, Clone, Copy)]
pub struct NormInputs<'a> {
    /// The input.
    pub x: &'a Slice,
    /// The output's gradient.
    pub dy: &'a Slice,
    /// The weight.
    pub gamma: &'a Slice,
    /// The means that forward returned.
    pub mean: &'a Slice,
    /// 1/√(variance + eps), as forward returned it.
    pub inv_std: &'a Slice,
}

/// Normalises rows of `width`. Returns the output, and the means and 1/√(variance + eps) of rows. `gamma` and `beta` are of the
/// compute type.
///
/// # Errors
/// If lengths or types do not match.
pub fn layer_norm(
    gpu: &Gpu,
    x: &Slice,
    gamma: &Slice,
    beta: &Slice,
    width: usize,
    eps: f64,
) -> Result<[Slice; 3]> {
    const FUNCTION: &str = "layer_norm";
    check_float(FUNCTION, x.dtype())?;
    let (count, wide) = (row_count(FUNCTION, x, width)?, x.dtype().wide());
    check(FUNCTION, "gamma", gamma, wide, width)?;
    check(FUNCTION, "beta", beta, wide, width)?;
    let y = gpu.unwritten(x.dtype(), x.len())?;
    let (mean, inv_std) = (gpu.unwritten(wide, count)?, gpu.unwritten(wide, count)?);
    let (group, grid) = rows(count, width);
    launch(gpu, &ROW_NORMS, &format!("layer_norm_{group}_{}", x.dtype()), grid)
        .slice(x)
        .slice(gamma)
        .slice(beta)
        .slice(&y)
        .slice(&mean)
        .slice(&inv_std)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .number(eps)
        .run()?;
    Ok([y, mean, inv_std])
}

/// Computes the gradients of [`layer_norm`]: of the input, in dy's type; of weight and bias, in the compute type. `before`, of dy's
/// type, is a gradient that the input has already: that of the input is the sum of both.
///
/// # Errors
/// If lengths or types do not match.
pub fn layer_norm_backward(
    gpu: &Gpu,
    from: NormInputs<'_>,
    before: Option<&Slice>,
    width: usize,
) -> Result<[Slice; 3]> {
    const FUNCTION: &str = "layer_norm_backward";
    let NormInputs { x, dy, gamma, mean, inv_std } = from;
    let (count, wide) = (row_count(FUNCTION, x, width)?, x.dtype().wide());
    check_len(FUNCTION, "dy", dy, x.len())?;
    before.map_or(Ok(()), |before| check(FUNCTION, "before", before, dy.dtype(), x.len()))?;
    check(FUNCTION, "gamma", gamma, wide, width)?;
    check(FUNCTION, "mean", mean, wide, count)?;
    check(FUNCTION, "inv_std", inv_std, wide, count)?;
    let suffix = backward_suffix(FUNCTION, x.dtype(), dy.dtype())?;
    let small = narrow_size(FUNCTION, width)?;
    let dx = gpu.unwritten(dy.dtype(), x.len())?;
    if count == 0 {
        return Ok([dx, gpu.zeros(wide, width)?, gpu.zeros(wide, width)?]);
    }
    let (group, grid) = rows(count, width);
    launch(gpu, &ROW_NORMS, &format!("layer_norm_backward_{group}_{suffix}"), grid)
        .slice(x)
        .slice(dy)
        .slice(gamma)
        .slice(mean)
        .slice(inv_std)
        .optional(before)
        .slice(&dx)
        .number(count as i64)
        .number(small)
        .run()?;
    let tiles = width.div_ceil(32);
    let per_chunk = rows_per_chunk(count, tiles);
    let chunks = count.div_ceil(per_chunk);
    let parts = gpu.unwritten(wide, 2 * chunks * width)?;
    launch(gpu, &ROW_NORMS, &format!("layer_norm_affine_{suffix}"), [tiles, chunks, 1])
        .blocks([tiles, chunks, 1], [32, THREADS / 32, 1])
        .slice(x)
        .slice(dy)
        .slice(mean)
        .slice(inv_std)
        .slice(&parts)
        .number(count as i64)
        .number(small)
        .number(per_chunk as i64)
        .run()?;
    let sums = gpu.unwritten(wide, 2 * width)?;
    launch(gpu, &SUMS, &format!("sum_columns_{wide}_{wide}"), [tiles, 1, 2])
        .blocks([tiles, 1, 2], [32, THREADS / 32, 1])
        .slice(&parts)
        .slice(&sums)
        .number(2_i64)
        .number(chunks as i64)
        .number(width as i64)
        .number(chunks as i64)
        .run()?;
    Ok([dx, sums.view(0..width)?, sums.view(width..2 * width)?])
}

/// Divides every row of `width` by its L2 norm. Returns the rows, and the inverse norms in f64. Rows of zeros are unchanged.
///
/// # Errors
/// If the length is not a multiple of the width, or the elements are not floats.
pub fn l2_normalise(gpu: &Gpu, x: &Slice, width: usize) -> Result<[Slice; 2]> {
    const FUNCTION: &str = "l2_normalise";
    check_float(FUNCTION, x.dtype())?;
    let count = row_count(FUNCTION, x, width)?;
    let (y, inverses) = (gpu.unwritten(x.dtype(), x.len())?, gpu.unwritten(ElementType::F64, count)?);
    launch(gpu, &ROW_NORMS, &format!("l2_normalise_{}", x.dtype()), warps(count))
        .slice(x)
        .slice(&y)
        .slice(&inverses)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .run()?;
    Ok([y, inverses])
}

/// Computes the gradient of the input of [`l2_normalise`] from the output `y`, its gradient and the inverse norms, in dy's type.
///
/// # Errors
/// If lengths or types do not match.
pub fn l2_normalise_backward(
    gpu: &Gpu,
    y: &Slice,
    dy: &Slice,
    inverses: &Slice,
    width: usize,
) -> Result<Slice> {
    const FUNCTION: &str = "l2_normalise_backward";
    let count = row_count(FUNCTION, y, width)?;
    check_len(FUNCTION, "dy", dy, y.len())?;
    check(FUNCTION, "inverses", inverses, ElementType::F64, count)?;
    let suffix = backward_suffix(FUNCTION, y.dtype(), dy.dtype())?;
    let dx = gpu.unwritten(dy.dtype(), y.len())?;
    launch(gpu, &ROW_NORMS, &format!("l2_normalise_backward_{suffix}"), warps(count))
        .slice(y)
        .slice(dy)
        .slice(inverses)
        .slice(&dx)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .run()?;
    Ok(dx)
}
