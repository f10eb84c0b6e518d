//! Steps of optimizers over whole flat units, and what is done with gradients before.

use phalanx_kernels::{AdamOptions, EmaOptions, LOSS_SCALE_STATE, LossScaleOptions, SgdOptions};

use super::grid::{check, check_float, launch, over, pack, parts};
use super::sources::UPDATES;
use super::sums::sum_of_parts;
use crate::launch::Number;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// What a step reads and writes besides its moments. Weights are f32 or f64.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// The weights, which change.
    pub weights: &'a Slice,
    /// Their gradients: of the weights' type, or of 16 bits for weights of f32.
    pub grads: &'a Slice,
    /// What gradients are multiplied by: a scalar of f64.
    pub factor: Option<&'a Slice>,
    /// A flag of u32: where it is not 0 nothing changes.
    pub skip: Option<&'a Slice>,
    /// How many of the steps before were left out so, a scalar of f64: they are none of those that Adam's corrections count.
    pub left_out: Option<&'a Slice>,
    /// Where the new weights are written besides, in 16 bits.
    pub low: Option<&'a Slice>,
}

impl<'a> StepInputs<'a> {
    /// A step with nothing more than weights and gradients.
    pub fn new(weights: &'a Slice, grads: &'a Slice) -> Self {
        Self { weights, grads, factor: None, skip: None, left_out: None, low: None }
    }

    /// The suffix of kernels, and what they call the type of the copy.
    fn check(&self, function: &'static str) -> Result<(String, i32)> {
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

/// Fails unless what says which steps count is a flag of u32, and a scalar of f64.
fn check_counted(function: &'static str, skip: Option<&Slice>, left_out: Option<&Slice>) -> Result<()> {
    if let Some(skip) = skip {
        check(function, "skip", skip, ElementType::U32, 1)?;
    }
    left_out.map_or(Ok(()), |left_out| check(function, "left_out", left_out, ElementType::F64, 1))
}

/// Numbers that a step multiplies by: as they are, or wherever they lie on the device when it runs, for graphs.
#[derive(Debug, Clone, Copy)]
pub enum StepNumbers<'a, T> {
    /// These.
    Now(T),
    /// Those that `T` becomes by [`OnDevice::numbers`], in an array of f64 of as many.
    At(&'a Slice),
}

impl<T> From<T> for StepNumbers<'_, T> {
    fn from(numbers: T) -> Self {
        Self::Now(numbers)
    }
}

/// What a step is told, as the numbers that its kernel multiplies by.
pub trait OnDevice {
    /// The numbers, in the order of the kernel's.
    type Numbers: AsRef<[f64]> + Number + Default;

    /// Works the numbers out.
    fn numbers(&self) -> Self::Numbers;
}

impl OnDevice for SgdOptions {
    type Numbers = [f64; 5];

    fn numbers(&self) -> Self::Numbers {
        let number = |yes: bool| f64::from(u8::from(yes));
        let Self { lr, momentum, nesterov, weight_decay, first } = *self;
        [lr, momentum, weight_decay, number(nesterov), number(first)]
    }
}

impl OnDevice for AdamOptions {
    type Numbers = [f64; 11];

    fn numbers(&self) -> Self::Numbers {
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

impl OnDevice for EmaOptions {
    type Numbers = [f64; 4];

    fn numbers(&self) -> Self::Numbers {
        let keep = self.keep();
        [keep, 1.0 - keep, self.decay, self.updates as f64]
    }
}

impl<'a, T: OnDevice> StepNumbers<'a, T> {
    /// What a kernel takes: numbers by value, and where they lie instead.
    fn arguments(&self, function: &'static str) -> Result<(T::Numbers, Option<&'a Slice>)> {
        match self {
            Self::Now(options) => Ok((options.numbers(), None)),
            Self::At(slice) => {
                let none = T::Numbers::default();
                check(function, "numbers", slice, ElementType::F64, none.as_ref().len())?;
                Ok((none, Some(slice)))
            }
        }
    }
}

/// One step of gradient descent; `buffer` is the momentum's, if there is momentum, and changes. With numbers on the device there
/// is momentum if there is a buffer.
///
/// # Errors
/// If lengths or types do not go together.
pub fn sgd_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepNumbers<'a, SgdOptions>>,
    step: StepInputs<'_>,
    buffer: Option<&Slice>,
) -> Result<()> {
    const FUNCTION: &str = "sgd_step";
    let (suffix, low) = step.check(FUNCTION)?;
    let options = options.into();
    let buffer = match options {
        StepNumbers::Now(options) if options.momentum == 0.0 => None,
        StepNumbers::Now(_) if buffer.is_none() => {
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

/// One step of Adam or AdamW; `moments` are the averages of gradients and of their squares, and change.
///
/// # Errors
/// If lengths or types do not go together.
pub fn adam_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepNumbers<'a, AdamOptions>>,
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

/// What an update of an average reads and writes, of f32 or f64.
#[derive(Debug, Clone, Copy)]
pub struct EmaInputs<'a> {
    /// The average, which changes.
    pub average: &'a Slice,
    /// The weights.
    pub weights: &'a Slice,
    /// A flag of u32: where it is not 0 nothing changes.
    pub skip: Option<&'a Slice>,
    /// How many of the updates before were left out so, a scalar of f64. The first that is not takes the weights as they are.
    pub left_out: Option<&'a Slice>,
}

impl<'a> EmaInputs<'a> {
    /// An update that counts.
    pub fn new(average: &'a Slice, weights: &'a Slice) -> Self {
        Self { average, weights, skip: None, left_out: None }
    }
}

/// average ← keep·average + (1 − keep)·weights, with [`EmaOptions::keep`].
///
/// # Errors
/// If lengths or types differ.
pub fn ema_step<'a>(
    gpu: &Gpu,
    options: impl Into<StepNumbers<'a, EmaOptions>>,
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

/// The sum of the squares of all elements, squared and added in f64: a scalar of f64.
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

/// to ← factor·to, where `factor` is a scalar of f64.
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

/// What gradients are to be multiplied by so that their norm is at most `max_norm`, from the sum of their squares; 1 if they
/// need not be, or the norm is not finite.
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

/// 1 if a number is not finite and 0 if it is, where it lies: what ranks agree on by the largest. Scalars of f64.
///
/// # Errors
/// If the number is not such a scalar.
pub fn not_finite(gpu: &Gpu, number: &Slice) -> Result<Slice> {
    check("not_finite", "number", number, ElementType::F64, 1)?;
    let flag = gpu.unwritten(ElementType::F64, 1)?;
    launch(gpu, &UPDATES, "not_finite", [1, 1, 1]).blocks([1; 3], [1; 3]).slice(number).slice(&flag).run()?;
    Ok(flag)
}

/// What a step of a scaled loss has come to, on the device.
#[derive(Debug, Clone)]
pub struct ScaledStep {
    /// What gradients are multiplied by, 1/scale and clipping in one: a scalar of f64, as [`StepInputs`] takes it.
    pub factor: Slice,
    /// Whether the step is left out: a flag of u32.
    pub skip: Slice,
    /// `[7]` of f64 for whoever reads it later: the scale of this step, 1 if it is left out, the norm of unscaled gradients, and
    /// the state after it.
    pub told: Slice,
}

/// Loss scaling without the host, from the sum of squares of scaled gradients and whether any rank's are not finite
/// ([`not_finite`]); as [`phalanx_kernels::loss_scale_step`], with its state in `state`, which changes.
///
/// # Errors
/// If an array is not of f64, or has another number of elements.
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
    let told = gpu.unwritten(ElementType::F64, 3 + LOSS_SCALE_STATE)?;
    launch(gpu, &UPDATES, FUNCTION, [1, 1, 1])
        .blocks([1; 3], [1; 3])
        .slice(sum_of_squares)
        .slice(overflow)
        .number(options.max_norm.unwrap_or(0.0))
        .number(options.interval.unwrap_or(0) as f64)
        .slice(state)
        .slice(&factor)
        .slice(&skip)
        .slice(&told)
        .run()?;
    Ok(ScaledStep { factor, skip, told })
}
