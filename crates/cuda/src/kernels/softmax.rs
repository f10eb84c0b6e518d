//! Softmax of rows, and its gradient.

use super::grid::{backward_suffix, check_float, check_len, launch, narrow_size, rows};
use super::sources::SOFTMAX;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Computes the softmax of every row of `[rows, width]`, stored as `dtype`: the type of x, f32, or 16 bits for x of f32.
/// A row of −∞ alone becomes 0.
///
/// # Errors
/// If the length is not a multiple of the width, or the types do not match.
pub fn softmax(gpu: &Gpu, x: &Slice, width: usize, dtype: ElementType) -> Result<Slice> {
    const FUNCTION: &str = "softmax";
    let count = row_count(FUNCTION, x, width)?;
    let from = x.dtype();
    check_float(FUNCTION, from)?;
    if dtype != from && dtype != from.wide() && !(from == ElementType::F32 && dtype.is_half()) {
        return Err(GpuError::unsupported(FUNCTION, format!("{from} as {dtype}")));
    }
    let y = gpu.unwritten(dtype, x.len())?;
    let (group, grid) = rows(count, width);
    launch(gpu, &SOFTMAX, &format!("softmax_{group}_{from}_{dtype}"), grid)
        .slice(x)
        .slice(&y)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .run()?;
    Ok(y)
}

/// Computes the gradient of softmax's input from the output `y` and its gradient, in dy's type.
///
/// # Errors
/// If the lengths differ, or the gradient is neither of y's type nor of its compute type.
pub fn softmax_backward(gpu: &Gpu, y: &Slice, dy: &Slice, width: usize) -> Result<Slice> {
    const FUNCTION: &str = "softmax_backward";
    let count = row_count(FUNCTION, y, width)?;
    check_len(FUNCTION, "dy", dy, y.len())?;
    let suffix = backward_suffix(FUNCTION, y.dtype(), dy.dtype())?;
    let dx = gpu.unwritten(dy.dtype(), y.len())?;
    let (group, grid) = rows(count, width);
    launch(gpu, &SOFTMAX, &format!("softmax_backward_{group}_{suffix}"), grid)
        .slice(y)
        .slice(dy)
        .slice(&dx)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .run()?;
    Ok(dx)
}

/// Returns the number of rows of `width`.
pub(super) fn row_count(function: &'static str, x: &Slice, width: usize) -> Result<usize> {
    let count = x.len() / width.max(1);
    if count * width != x.len() {
        return Err(GpuError::argument(function, format!("{} elements are not rows of {width}", x.len())));
    }
    Ok(count)
}
