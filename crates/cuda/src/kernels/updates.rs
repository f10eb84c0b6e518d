//! Optimizer steps and moving averages over whole buckets.

use phalanx_kernels::{AdamOptions, EmaOptions, LionOptions, SgdOptions};

use super::grid::{check, launch, over, pack};
use super::sources::UPDATES;
use crate::launch::Number;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// The arguments of a step, except for its moments. Weights are f32 or f64.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// The weights, updated in place.
    pub weights: &'a Slice,
    /// Their gradients: of the weights' type, or 16 bits for weights of f32.
    pub grads: &'a Slice,
    /// Multiplies the gradients: a scalar of f64.
    pub factor: Option<&'a Slice>,
    /// A flag of u32: the step does nothing if it is not 0.
    pub skip: Option<&'a Slice>,
    /// The number of earlier steps that were skipped, a scalar of f64. Adam's bias correction does not count them.
    pub left_out: Option<&'a Slice>,
    /// A 16-bit copy of the new weights.
    pub low: Option<&'a Slice>,
}

impl<'a> StepInputs<'a> {
    /// Returns a step with weights and gradients alone.
    pub fn new(weights: &'a Slice, grads: &'a Slice) -> Self {
        Self { weights, grads, factor: None, skip: None, left_out: None, low: None }
    }

    /// Returns the suffix of kernels, and their number for the type of the copy.
    pub(super) fn check(&self, function: &'static str) -> Result<(String, i32)> {
        let (w, g) = (self.weights.dtype(), self.grads.dtype());
        super::grid::check_len(function, "grads", self.grads, self.weights.len())?;
        if !matches!(w, ElementType::F32 | ElementType::F64)
            || g != w && !(w == ElementType::F32 && g.is_half())
        {
            return Err(GpuError::unsupported(function, format!("weights of {w} with gradients of {g}")));
        }
        if let Some(factor) = self.factor {
            check(function, "factor", factor, ElementType::F64, 1)?;
        }
        check_counted(function, self.skip, self.left_out)?;
        let kind = match self.low.map(Slice::dtype) {
            None => 0,
            Some(ElementType::Bf16) => 1,
            Some(ElementType::F16) => 2,
            Some(other) => {
                return Err(GpuError::unsupported(function, format!("a copy of the weights in {other}")));
            }
        };
        if let Some(low) = self.low {
            super::grid::check_len(function, "low", low, self.weights.len())?;
        }
        Ok((format!("{w}_{g}"), kind))
    }
}

/// Checks the skip flag (u32) and the count of skipped steps (f64).
fn check_counted(function: &'static str, skip: Option<&Slice>, left_out: Option<&Slice>) -> Result<()> {
    if let Some(skip) = skip {
        check(function, "skip", skip, ElementType::U32, 1)?;
    }
    left_out.map_or(Ok(()), |left_out| check(function, "left_out", left_out, ElementType::F64, 1))
}

/// The scalars of a step: by value, or on the device, which a graph reads at each launch.
#[derive(Debug, Clone, Copy)]
pub enum StepScalars<'a, T> {
    /// Passed by value.
    Value(T),
    /// The result of [`StepOptions::scalars`], in an f64 array of that length.
    OnDevice(&'a Slice),
}

impl<T> From<T> for StepScalars<'_, T> {
    fn from(numbers: T) -> Self {
        Self::Value(numbers)
    }
}

/// Options of a step that its kernel takes as scalars.
pub trait StepOptions {
    /// The scalars, in the kernel's order.
    type Scalars: AsRef<[f64]> + Number + Default;

    /// Computes the scalars.
    fn scalars(&self) -> Self::Scalars;
}

impl StepOptions for SgdOptions {
    type Scalars = [f64; 5];

    fn scalars(&self) -> Self::Scalars {
        let number = |yes: bool| f64::from(u8::from(yes));
        let Self { lr, momentum, nesterov, weight_decay, first } = *self;
        [lr, momentum, weight_decay, number(nesterov), number(first)]
    }
}

impl StepOptions for AdamOptions {
    type Scalars = [f64; 11];

    fn scalars(&self) -> Self::Scalars {
        let Self { lr, betas: (beta1, beta2), eps, weight_decay, decoupled, step: number } = *self;
        let power = i32::try_from(number).unwrap_or(i32::MAX);
        let correction1 = 1.0 - beta1.powi(power);
        let correction2 = (1.0 - beta2.powi(power)).sqrt();
        let shrink = if decoupled { 1.0 - lr * weight_decay } else { 1.0 };
        let decay = if decoupled { 0.0 } else { weight_decay };
        let (take1, take2) = (1.0 - beta1, 1.0 - beta2);
        let (step, inverse2) = (lr / correction1, 1.0 / correction2);
        [step, inverse2, eps, beta1, take1, beta2, take2, shrink, decay, lr, f64::from(power)]
    }
}

impl StepOptions for LionOptions {
    type Scalars = [f64; 6];

    fn scalars(&self) -> Self::Scalars {
        let Self { lr, betas: (beta1, beta2), weight_decay } = *self;
        [lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2, 1.0 - lr * weight_decay]
    }
}

impl StepOptions for EmaOptions {
    type Scalars = [f64; 4];

    fn scalars(&self) -> Self::Scalars {
        let keep = self.keep();
        [keep, 1.0 - keep, self.decay, self.updates as f64]
    }
}

impl<'a, T: StepOptions> StepScalars<'a, T> {
    /// Returns a kernel's arguments: scalars by value, and their slice if they are on the device.
    pub(super) fn arguments(&self, function: &'static str) -> Result<(T::Scalars, Option<&'a Slice>)> {
        match self {
            Self::Value(options) => Ok((options.scalars(), None)),
            Self::OnDevice(slice) => {
                let none = T::Scalars::default();
                check(function, "numbers", slice, ElementType::F64, none.as_ref().len())?;
                Ok((none, Some(slice)))
            }
        }
    }
}

/// Runs a step of gradient descent. `buffer` is updated with momentum. With scalars on the device, momentum is used if there is a
/// buffer.
///
/// # Errors
/// If lengths or types do not match.
pub fn sgd_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, SgdOptions>>,
    step: StepInputs<'_>,
    buffer: Option<&Slice>,
) -> Result<()> {
    const FUNCTION: &str = "sgd_step";
    let (suffix, low) = step.check(FUNCTION)?;
    let options = options.into();
    let buffer = match options {
        StepScalars::Value(options) if options.momentum == 0.0 => None,
        StepScalars::Value(_) if buffer.is_none() => {
            return Err(GpuError::argument(FUNCTION, "momentum needs a buffer"));
        }
        _ => buffer,
    };
    if let Some(buffer) = buffer {
        check(FUNCTION, "buffer", buffer, step.weights.dtype(), step.weights.len())?;
    }
    let (numbers, at) = options.arguments(FUNCTION)?;
    let count = step.weights.len();
    launch(gpu, &UPDATES, &format!("sgd_{suffix}"), over(count, pack(&[step.weights.dtype()])))
        .number(numbers)
        .optional(at)
        .slice(step.weights)
        .slice(step.grads)
        .optional(buffer)
        .optional(step.factor)
        .optional(step.skip)
        .optional(step.low)
        .number(low)
        .number(count as i64)
        .run()
}

/// Runs a step of Adam or AdamW. `moments` are the averages of gradients and of their squares, updated in place.
///
/// # Errors
/// If lengths or types do not match.
pub fn adam_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, AdamOptions>>,
    step: StepInputs<'_>,
    moments: [&Slice; 2],
) -> Result<()> {
    const FUNCTION: &str = "adam_step";
    let (suffix, low) = step.check(FUNCTION)?;
    for moment in moments {
        check(FUNCTION, "a moment", moment, step.weights.dtype(), step.weights.len())?;
    }
    let (numbers, at) = options.into().arguments(FUNCTION)?;
    let count = step.weights.len();
    launch(gpu, &UPDATES, &format!("adam_{suffix}"), over(count, pack(&[step.weights.dtype()])))
        .number(numbers)
        .optional(at)
        .slice(step.weights)
        .slice(step.grads)
        .slice(moments[0])
        .slice(moments[1])
        .optional(step.factor)
        .optional(step.skip)
        .optional(step.left_out)
        .optional(step.low)
        .number(low)
        .number(count as i64)
        .run()
}

/// Runs a step of Lion. `moment` is the momentum, updated in place.
///
/// # Errors
/// If lengths or types do not match.
pub fn lion_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, LionOptions>>,
    step: StepInputs<'_>,
    moment: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "lion_step";
    let (suffix, low) = step.check(FUNCTION)?;
    check(FUNCTION, "the moment", moment, step.weights.dtype(), step.weights.len())?;
    let (numbers, at) = options.into().arguments(FUNCTION)?;
    let count = step.weights.len();
    launch(gpu, &UPDATES, &format!("lion_{suffix}"), over(count, pack(&[step.weights.dtype()])))
        .number(numbers)
        .optional(at)
        .slice(step.weights)
        .slice(step.grads)
        .slice(moment)
        .optional(step.factor)
        .optional(step.skip)
        .optional(step.low)
        .number(low)
        .number(count as i64)
        .run()
}

/// The arguments of an update of a moving average, f32 or f64.
#[derive(Debug, Clone, Copy)]
pub struct EmaInputs<'a> {
    /// The average, updated in place.
    pub average: &'a Slice,
    /// The weights.
    pub weights: &'a Slice,
    /// A flag of u32: the update does nothing if it is not 0.
    pub skip: Option<&'a Slice>,
    /// The number of earlier updates that were skipped, a scalar of f64. The first that was not skipped copies the weights.
    pub left_out: Option<&'a Slice>,
}

impl<'a> EmaInputs<'a> {
    /// Returns an update without a skip flag.
    pub fn new(average: &'a Slice, weights: &'a Slice) -> Self {
        Self { average, weights, skip: None, left_out: None }
    }
}

/// Computes average ← keep·average + (1 − keep)·weights, with [`EmaOptions::keep`].
///
/// # Errors
/// If lengths or types differ.
pub fn ema_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepScalars<'a, EmaOptions>>,
    step: EmaInputs<'_>,
) -> Result<()> {
    const FUNCTION: &str = "ema_step";
    let EmaInputs { average, weights, skip, left_out } = step;
    check(FUNCTION, "weights", weights, average.dtype(), average.len())?;
    if !matches!(average.dtype(), ElementType::F32 | ElementType::F64) {
        return Err(GpuError::unsupported(FUNCTION, average.dtype().to_string()));
    }
    check_counted(FUNCTION, skip, left_out)?;
    let (numbers, at) = options.into().arguments(FUNCTION)?;
    launch(gpu, &UPDATES, &format!("ema_{}", average.dtype()), over(average.len(), pack(&[average.dtype()])))
        .number(numbers)
        .optional(at)
        .slice(average)
        .slice(weights)
        .optional(skip)
        .optional(left_out)
        .number(average.len() as i64)
        .run()
}
