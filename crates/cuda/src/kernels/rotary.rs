//! Rotary position embeddings (Su et al. 2021), by halves.

use super::grid::{check, check_float, check_len, check_type, launch, narrow_size, over};
use super::sources::ROTARY;
use crate::{ElementType, Gpu, Result, Slice};

/// Returns cosines and sines, f32 [positions, frequencies], of each position (u32) times each frequency (f64), times `scale`.
///
/// # Errors
/// If the types do not match.
pub fn rotary_angles(gpu: &Gpu, positions: &Slice, frequencies: &Slice, scale: f64) -> Result<[Slice; 2]> {
    const FUNCTION: &str = "rotary_angles";
    check_type(FUNCTION, "positions", positions, ElementType::U32)?;
    check_type(FUNCTION, "frequencies", frequencies, ElementType::F64)?;
    let count = positions.len() * frequencies.len();
    let (cos, sin) = (gpu.unwritten(ElementType::F32, count)?, gpu.unwritten(ElementType::F32, count)?);
    launch(gpu, &ROTARY, FUNCTION, over(count, 1))
        .slice(positions)
        .slice(frequencies)
        .slice(&cos)
        .slice(&sin)
        .number(narrow_size(FUNCTION, frequencies.len())?)
        .number(scale)
        .number(count as i64)
        .run()?;
    Ok([cos, sin])
}

/// Rotates the pairs (i, i + dim/2) of `x` [positions, heads, dim] by the angles of each position, back if `inverse`.
///
/// # Errors
/// If the lengths do not match, or the elements are not floats.
pub fn rotary(
    gpu: &Gpu,
    [positions, heads, dim]: [usize; 3],
    x: &Slice,
    [cos, sin]: [&Slice; 2],
    inverse: bool,
) -> Result<Slice> {
    const FUNCTION: &str = "rotary";
    let half = dim / 2;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, positions * heads * 2 * half)?;
    check(FUNCTION, "cos", cos, ElementType::F32, positions * half)?;
    check(FUNCTION, "sin", sin, ElementType::F32, positions * half)?;
    let y = gpu.unwritten(x.dtype(), x.len())?;
    launch(gpu, &ROTARY, &format!("rotary_{}", x.dtype()), over(x.len() / 2, 1))
        .slice(x)
        .slice(cos)
        .slice(sin)
        .slice(&y)
        .number(narrow_size(FUNCTION, heads)?)
        .number(narrow_size(FUNCTION, half)?)
        .number(if inverse { -1.0 } else { 1.0 })
        .number((x.len() / 2) as i64)
        .run()?;
    Ok(y)
}
