//! Sums of squares without rounding, which are the same in whatever order and however cut.

use phalanx_kernels::ExactSquares;

use super::grid::{check, check_type, launch, over, pack};
use super::sources::EXACT_SQUARES;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Elements whose squares the limbs of a sum hold before they are carried.
const MOST: usize = 1 << 31;

/// The exact sum of the squares of all elements, of f32: [`ExactSquares::digits`], where they lie. Those of several parts, added up
/// element by element, are those of the whole.
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

/// The sum whose digits ([`exact_squares`]), or the sums of these over parts, are given: a scalar of f64, rounded down; infinite or
/// NaN if an element was.
///
/// # Errors
/// If there are not as many numbers of f64 as there are digits.
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
