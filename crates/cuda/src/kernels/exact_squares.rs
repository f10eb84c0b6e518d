//! Exact sums of squares, which do not depend on the order or the partition of the elements.

use phalanx_kernels::ExactSquares;

use super::grid::{check, check_type, launch, over, pack};
use super::sources::EXACT_SQUARES;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// The maximum number of squares before the limbs of a sum overflow.
const MOST: usize = 1 << 31;

/// Computes the exact sum of the squares of f32 elements, as [`ExactSquares::digits`] on the device. The digits of
/// parts, added element by element, equal the digits of the whole.
///
/// # Errors
/// If the elements are not f32, or more than 2³¹.
pub fn exact_squares(gpu: &Gpu, x: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "exact_squares";
    check_type(FUNCTION, "x", x, ElementType::F32)?;
    if x.len() > MOST {
        return Err(GpuError::unsupported(
            FUNCTION,
            format!("{} elements at once, of at most {MOST}", x.len()),
        ));
    }
    let totals = gpu.zeros(ElementType::I64, ExactSquares::DIGITS)?;
    if !x.is_empty() {
        launch(gpu, &EXACT_SQUARES, "exact_squares_f32", over(x.len(), 4 * pack(&[x.dtype()])))
            .slice(x)
            .slice(&totals)
            .number(x.len() as i64)
            .run()?;
    }
    let digits = gpu.unwritten(ElementType::F64, ExactSquares::DIGITS)?;
    launch(gpu, &EXACT_SQUARES, "exact_digits", [1, 1, 1])
        .blocks([1; 3], [1; 3])
        .slice(&totals)
        .slice(&digits)
        .run()?;
    Ok(digits)
}

/// Converts digits ([`exact_squares`]), or sums of digits over parts, to a scalar of f64. It is rounded down, and infinite or NaN
/// if an element was.
///
/// # Errors
/// If the digits have another length or type.
pub fn exact_squares_value(gpu: &Gpu, digits: &Slice) -> Result<Slice> {
    check("exact_squares_value", "digits", digits, ElementType::F64, ExactSquares::DIGITS)?;
    let value = gpu.unwritten(ElementType::F64, 1)?;
    launch(gpu, &EXACT_SQUARES, "exact_value", [1, 1, 1])
        .blocks([1; 3], [1; 3])
        .slice(digits)
        .slice(&value)
        .run()?;
    Ok(value)
}
