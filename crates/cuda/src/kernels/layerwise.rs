//! Steps of LAMB, whose learning rate has a factor for each parameter tensor.

use phalanx_kernels::LambOptions;

use super::grid::{check, launch, over, pack};
use super::sources::LAYERWISE;
use super::updates::{StepInputs, StepOptions, StepScalars};
use crate::{ElementType, Gpu, Result, Slice};

impl StepOptions for LambOptions {
    type Scalars = [f64; 10];

    fn scalars(&self) -> Self::Scalars {
        let Self { lr, betas: (beta1, beta2), eps, weight_decay, step } = *self;
        let (inverse1, inverse2) = self.corrections();
        let number = f64::from(i32::try_from(step).unwrap_or(i32::MAX));
        [inverse1, inverse2, eps, beta1, 1.0 - beta1, beta2, 1.0 - beta2, weight_decay, lr, number]
    }
}

/// Computes the direction of the next step, m̂ / (√v̂ + eps) + weight_decay·w, of the weights' type. `moments` are the averages
/// of gradients and of their squares, which are not changed; nor does a skip flag matter.
///
/// # Errors
/// If lengths or types do not match.
pub fn lamb_direction<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, LambOptions>>,
    step: StepInputs<'_>,
    moments: [&Slice; 2],
) -> Result<Slice> {
    const FUNCTION: &str = "lamb_direction";
    let (suffix, _) = step.check(FUNCTION)?;
    let (dtype, count) = (step.weights.dtype(), step.weights.len());
    for moment in moments {
        check(FUNCTION, "a moment", moment, dtype, count)?;
    }
    let (numbers, at) = options.into().arguments(FUNCTION)?;
    let direction = gpu.unwritten(dtype, count)?;
    launch(gpu, &LAYERWISE, &format!("lamb_direction_{suffix}"), over(count, pack(&[dtype])))
        .number(numbers)
        .optional(at)
        .slice(step.weights)
        .slice(step.grads)
        .slice(moments[0])
        .slice(moments[1])
        .optional(step.factor)
        .optional(step.left_out)
        .slice(&direction)
        .number(count as i64)
        .run()?;
    Ok(direction)
}

/// Runs a step over elements that share the factor of the learning rate: ‖weights‖ / ‖direction‖ from the sums of squares
/// `squares`, two scalars of f64, or 1 without them. `moments` are updated in place.
///
/// # Errors
/// If lengths or types do not match.
pub fn lamb_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, LambOptions>>,
    step: StepInputs<'_>,
    moments: [&Slice; 2],
    squares: Option<[&Slice; 2]>,
) -> Result<()> {
    const FUNCTION: &str = "lamb_step";
    let (suffix, low) = step.check(FUNCTION)?;
    let (dtype, count) = (step.weights.dtype(), step.weights.len());
    for moment in moments {
        check(FUNCTION, "a moment", moment, dtype, count)?;
    }
    for sum in squares.iter().flatten() {
        check(FUNCTION, "a sum of squares", sum, ElementType::F64, 1)?;
    }
    let (numbers, at) = options.into().arguments(FUNCTION)?;
    launch(gpu, &LAYERWISE, &format!("lamb_{suffix}"), over(count, pack(&[dtype])))
        .number(numbers)
        .optional(at)
        .slice(step.weights)
        .slice(step.grads)
        .slice(moments[0])
        .slice(moments[1])
        .optional(squares.map(|[weights, _]| weights))
        .optional(squares.map(|[_, direction]| direction))
        .optional(step.factor)
        .optional(step.skip)
        .optional(step.left_out)
        .optional(step.low)
        .number(low)
        .number(count as i64)
        .run()
}
