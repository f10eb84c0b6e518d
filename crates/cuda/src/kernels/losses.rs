//! Losses as scalars, and their gradients times the scalar's gradient.

use phalanx_kernels::CrossEntropyOptions;

use super::grid::{check, check_float, check_len, check_type, launch, narrow_size, over, pack, parts, rows};
use super::softmax::row_count;
use super::sources::LOSSES;
use super::sums::sum_of_parts;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// A loss over pairs of elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PairLoss {
    /// |x − t|, with derivative 0 at 0.
    L1,
    /// (x − t)²/(2·beta) within `beta`, and |x − t| − beta/2 beyond.
    SmoothL1 {
        /// The limit of the quadratic part.
        beta: f64,
    },
    /// (x − t)².
    Mse,
    /// The cross-entropy of t with σ(x).
    BceWithLogits,
    /// ½(x² + eᵗ − 1 − t): the KL divergence of a normal distribution with mean x and log-variance t from the standard one.
    KlStandardNormal,
}

impl PairLoss {
    /// Returns the kernels' number and parameter.
    fn parameters(self) -> (i32, f64) {
        match self {
            Self::L1 => (0, 1.0),
            Self::SmoothL1 { beta } => (1, beta),
            Self::Mse => (2, 1.0),
            Self::BceWithLogits => (3, 1.0),
            Self::KlStandardNormal => (4, 1.0),
        }
    }
}

/// The targets of rows of logits.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyTargets<'a> {
    /// The class of each row, u32.
    pub labels: &'a Slice,
    /// The weight of each row, f32; 1 without.
    pub weights: Option<&'a Slice>,
    /// The loss of a row.
    pub options: CrossEntropyOptions,
    /// The factor of all losses.
    pub factor: f64,
}

/// Sums the cross-entropies of rows of `width` logits, and replaces the logits, f32 or f64, by the gradient of that sum, which is
/// returned in the same type. A label that is not below the number of classes makes the loss of a row with weight NaN.
///
/// # Errors
/// If lengths or types do not match.
pub fn cross_entropy(gpu: &Gpu, logits: &Slice, width: usize, of: CrossEntropyTargets<'_>) -> Result<Slice> {
    const FUNCTION: &str = "cross_entropy";
    let CrossEntropyTargets { labels, weights, options, factor } = of;
    let count = of.check(FUNCTION, logits, width)?;
    let classes = options.classes.unwrap_or(width);
    if classes > width {
        return Err(GpuError::unsupported(
            FUNCTION,
            format!("{classes} classes in rows of {width} {}", logits.dtype()),
        ));
    }
    let losses = gpu.unwritten(ElementType::F64, count)?;
    let (group, grid) = rows(count, width);
    launch(gpu, &LOSSES, &format!("cross_entropy_{group}_{}", logits.dtype()), grid)
        .slice(logits)
        .slice(labels)
        .optional(weights)
        .number(options.smoothing)
        .number(options.z_loss)
        // Without a bound of the logits.
        .number(options.soft_cap.unwrap_or(0.0))
        .number(factor)
        .slice(&losses)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .number(narrow_size(FUNCTION, classes)?)
        .run()?;
    sum_of_parts(gpu, &losses, 1.0, logits.dtype())
}

impl CrossEntropyTargets<'_> {
    /// Checks the types of logits, labels and weights, and returns the number of rows.
    pub(super) fn check(&self, function: &'static str, logits: &Slice, width: usize) -> Result<usize> {
        check_float(function, logits.dtype())?;
        let count = row_count(function, logits, width)?;
        check(function, "labels", self.labels, ElementType::U32, count)?;
        if let Some(weights) = self.weights {
            check(function, "weights", weights, ElementType::F32, count)?;
        }
        if logits.dtype().is_half() {
            return Err(GpuError::unsupported(function, format!("logits of {}", logits.dtype())));
        }
        Ok(count)
    }
}

/// Returns the suffix of pair kernels: 16-bit types pair with the same type and f32.
fn suffix(function: &'static str, x: &Slice, t: &Slice) -> Result<String> {
    check_len(function, "target", t, x.len())?;
    check_float(function, x.dtype())?;
    check_float(function, t.dtype())?;
    let (a, b) = (x.dtype(), t.dtype());
    if a != b && (a.wide() != b.wide() || a.is_half() && b.is_half()) {
        return Err(GpuError::unsupported(function, format!("{a} with targets of {b}")));
    }
    Ok(format!("{a}_{b}"))
}

/// Sums a loss over pairs of elements, times `factor`. Returns a scalar of the compute type.
///
/// # Errors
/// If lengths or types do not match.
pub fn pair_loss(gpu: &Gpu, loss: PairLoss, x: &Slice, target: &Slice, factor: f64) -> Result<Slice> {
    const FUNCTION: &str = "pair_loss";
    let (suffix, (kind, beta)) = (suffix(FUNCTION, x, target)?, loss.parameters());
    let count = parts(x.len(), pack(&[x.dtype(), target.dtype()]));
    let parts = gpu.unwritten(ElementType::F64, count)?;
    launch(gpu, &LOSSES, &format!("pair_loss_parts_{suffix}"), [count, 1, 1])
        .number(kind)
        .number(beta)
        .slice(x)
        .slice(target)
        .slice(&parts)
        .number(x.len() as i64)
        .run()?;
    sum_of_parts(gpu, &parts, factor, x.dtype().wide())
}

/// Computes the gradient of x of [`pair_loss`], in the compute type, where `grad` is that of the scalar.
///
/// # Errors
/// If lengths or types do not match.
pub fn pair_loss_backward(
    gpu: &Gpu,
    loss: PairLoss,
    x: &Slice,
    target: &Slice,
    factor: f64,
    grad: &Slice,
) -> Result<Slice> {
    let [dx, _] = backward(gpu, loss, x, target, factor, grad)?;
    dx.ok_or_else(|| GpuError::argument("pair_loss_backward", "no gradient"))
}

/// Computes the gradients of mean and log-variance of [`PairLoss::KlStandardNormal`], in the compute type.
///
/// # Errors
/// If lengths or types do not match.
pub fn kl_standard_normal_backward(
    gpu: &Gpu,
    mu: &Slice,
    logvar: &Slice,
    factor: f64,
    grad: &Slice,
) -> Result<[Slice; 2]> {
    match backward(gpu, PairLoss::KlStandardNormal, mu, logvar, factor, grad)? {
        [Some(dmu), Some(dlogvar)] => Ok([dmu, dlogvar]),
        _ => Err(GpuError::argument("kl_standard_normal_backward", "no gradient")),
    }
}

fn backward(
    gpu: &Gpu,
    loss: PairLoss,
    x: &Slice,
    target: &Slice,
    factor: f64,
    grad: &Slice,
) -> Result<[Option<Slice>; 2]> {
    const FUNCTION: &str = "pair_loss_backward";
    let (suffix, (kind, beta), wide) = (suffix(FUNCTION, x, target)?, loss.parameters(), x.dtype().wide());
    check_type(FUNCTION, "grad", grad, wide)?;
    check_len(FUNCTION, "grad", grad, 1)?;
    let dx = gpu.unwritten(wide, x.len())?;
    let dt = (loss == PairLoss::KlStandardNormal).then(|| gpu.unwritten(wide, x.len())).transpose()?;
    launch(
        gpu,
        &LOSSES,
        &format!("pair_loss_backward_{suffix}"),
        over(x.len(), pack(&[x.dtype(), target.dtype()])),
    )
    .number(kind)
    .number(beta)
    .slice(x)
    .slice(target)
    .number(factor)
    .slice(grad)
    .slice(&dx)
    .optional(dt.as_ref())
    .number(x.len() as i64)
    .run()?;
    Ok([Some(dx), dt])
}
