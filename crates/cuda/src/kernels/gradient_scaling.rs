//! Gradient clipping and loss scaling, with factors and flags on the device.

use phalanx_kernels::{LOSS_SCALE_STATE, LossScaleOptions};

use super::grid::{check, check_float, launch, over, pack, parts};
use super::sources::UPDATES;
use super::sums::sum_of_parts;
use crate::{ElementType, Gpu, Result, Slice};

/// Sums the squares of all elements in f64. Returns a scalar of f64.
///
/// # Errors
/// If the elements are not floats.
pub fn sum_of_squares(gpu: &Gpu, x: &Slice) -> Result<Slice> {
    check_float("sum_of_squares", x.dtype())?;
    let count = parts(x.len(), pack(&[x.dtype()]));
    let parts = gpu.unwritten(ElementType::F64, count)?;
    launch(gpu, &UPDATES, &format!("square_parts_{}", x.dtype()), [count, 1, 1])
        .slice(x)
        .slice(&parts)
        .number(x.len() as i64)
        .run()?;
    sum_of_parts(gpu, &parts, 1.0, ElementType::F64)
}

/// Computes to ← factor·to, where `factor` is a scalar of f64.
///
/// # Errors
/// If the elements are not floats, or `factor` is not such a scalar.
pub fn scale_by(gpu: &Gpu, to: &Slice, factor: &Slice) -> Result<()> {
    const FUNCTION: &str = "scale_by";
    check_float(FUNCTION, to.dtype())?;
    check(FUNCTION, "factor", factor, ElementType::F64, 1)?;
    launch(gpu, &UPDATES, &format!("scale_by_{}", to.dtype()), over(to.len(), pack(&[to.dtype()])))
        .slice(to)
        .slice(factor)
        .number(to.len() as i64)
        .run()
}

/// Returns the factor that clips gradients to `max_norm`, from the sum of their squares: 1 if the norm is smaller, or not finite.
///
/// # Errors
/// If the sum is not a scalar of f64.
pub fn clip_factor(gpu: &Gpu, sum_of_squares: &Slice, max_norm: f64) -> Result<Slice> {
    check("clip_factor", "sum_of_squares", sum_of_squares, ElementType::F64, 1)?;
    let factor = gpu.unwritten(ElementType::F64, 1)?;
    launch(gpu, &UPDATES, "clip_factor", [1, 1, 1])
        .blocks([1; 3], [1; 3])
        .slice(sum_of_squares)
        .number(max_norm)
        .slice(&factor)
        .run()?;
    Ok(factor)
}

/// Returns 1 if a scalar of f64 is not finite, and 0 if it is. Ranks agree on the flag by its maximum.
///
/// # Errors
/// If the number is not such a scalar.
pub fn not_finite(gpu: &Gpu, number: &Slice) -> Result<Slice> {
    check("not_finite", "number", number, ElementType::F64, 1)?;
    let flag = gpu.unwritten(ElementType::F64, 1)?;
    launch(gpu, &UPDATES, "not_finite", [1, 1, 1]).blocks([1; 3], [1; 3]).slice(number).slice(&flag).run()?;
    Ok(flag)
}

/// The results of a step of loss scaling, on the device.
#[derive(Debug, Clone)]
pub struct ScaledStep {
    /// Multiplies the gradients by 1/scale and the clipping factor: a scalar of f64 for [`StepInputs`](super::StepInputs).
    pub factor: Slice,
    /// A flag of u32: the step is skipped if it is not 0.
    pub skip: Slice,
    /// `[7]` of f64, to be read later: the scale of this step, 1 if it is skipped, the norm of unscaled gradients, and the state
    /// after it.
    pub report: Slice,
}

/// Computes a step of loss scaling on the device, from the sum of squares of scaled gradients and the overflow flag of all ranks
/// ([`not_finite`]). Works as [`phalanx_kernels::loss_scale_step`], with its state in `state`, updated in place.
///
/// # Errors
/// If an array is not f64, or has another length.
pub fn loss_scale_step(
    gpu: &Gpu,
    options: LossScaleOptions,
    (sum_of_squares, overflow): (&Slice, &Slice),
    state: &Slice,
) -> Result<ScaledStep> {
    const FUNCTION: &str = "loss_scale_step";
    check(FUNCTION, "sum_of_squares", sum_of_squares, ElementType::F64, 1)?;
    check(FUNCTION, "overflow", overflow, ElementType::F64, 1)?;
    check(FUNCTION, "state", state, ElementType::F64, LOSS_SCALE_STATE)?;
    let (factor, skip) = (gpu.unwritten(ElementType::F64, 1)?, gpu.unwritten(ElementType::U32, 1)?);
    let report = gpu.unwritten(ElementType::F64, 3 + LOSS_SCALE_STATE)?;
    launch(gpu, &UPDATES, FUNCTION, [1, 1, 1])
        .blocks([1; 3], [1; 3])
        .slice(sum_of_squares)
        .slice(overflow)
        .number(options.max_norm.unwrap_or(0.0))
        .number(options.interval.unwrap_or(0) as f64)
        .slice(state)
        .slice(&factor)
        .slice(&skip)
        .slice(&report)
        .run()?;
    Ok(ScaledStep { factor, skip, report })
}
