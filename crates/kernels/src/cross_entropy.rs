//! Cross-entropy of rows of logits, whose gradient takes the logits' place.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;
use crate::softmax::row_max;
use crate::unary::tanh;

/// The terms of a row's loss.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CrossEntropyOptions {
    /// The share of the target that is spread evenly over the classes (Szegedy et al. 2016).
    pub smoothing: f64,
    /// The factor of (ln Σ e^logit)², which keeps logits small (Chowdhery et al. 2022).
    pub z_loss: f64,
    /// The bound c of logits, which become c·tanh(logit/c) (Gemma Team 2024).
    pub soft_cap: Option<f64>,
    /// The number of classes if a row has more columns. Those behind are padding: they take no part.
    pub classes: Option<usize>,
}

/// The rows of a cross-entropy.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyRows<'a> {
    /// The class of each row.
    pub labels: &'a [u32],
    /// The weight of each row; 1 without. A row of weight 0 has no loss and no gradient, and its label is not read.
    pub weights: Option<&'a [f32]>,
    /// The loss.
    pub options: CrossEntropyOptions,
    /// The factor of all losses.
    pub factor: f64,
}

impl CrossEntropyRows<'_> {
    /// The weight of a row times the factor.
    pub(crate) fn scale(&self, row: usize) -> f64 {
        self.factor * self.weights.map_or(1.0, |weights| f64::from(weights[row]))
    }

    /// Checks the number of weights, and the labels of rows with weight.
    pub(crate) fn check(&self, kernel: &'static str, classes: usize) -> Result<()> {
        if let Some(weights) = self.weights {
            check_len(kernel, "weights", self.labels.len(), weights.len())?;
        }
        let wrong = |(row, label): &(usize, &u32)| **label as usize >= classes && self.scale(*row) != 0.0;
        match self.labels.iter().enumerate().find(wrong) {
            Some((row, label)) => {
                let problem = format!("label {label} of row {row} is not below the {classes} classes");
                Err(KernelError::Shape { kernel, problem })
            }
            None => Ok(()),
        }
    }
}

/// Computes the loss of each row of `logits` [rows, width] in `losses`, and replaces the logits by the gradient of the sum of
/// `losses`.
///
/// # Errors
/// If a length does not match, there are more classes than columns, or the label of a row with weight is not below the number
/// of classes.
pub fn cross_entropy_rows<T: Float>(
    context: &Context,
    width: usize,
    of: CrossEntropyRows<'_>,
    logits: &mut [T],
    losses: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "cross_entropy_rows";
    let classes = of.options.classes.unwrap_or(width);
    check_len(KERNEL, "logits", of.labels.len() * width, logits.len())?;
    check_len(KERNEL, "losses", of.labels.len(), losses.len())?;
    if classes > width {
        let problem = format!("{classes} classes in rows of {width}");
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    of.check(KERNEL, classes)?;
    if logits.is_empty() {
        return Ok(());
    }
    let piece = context.piece(logits.len(), width);
    let tasks = logits.chunks_mut(piece).zip(losses.chunks_mut(piece / width)).enumerate();
    context.run_each(tasks.collect(), |(task, (logits, losses))| {
        let first = task * (piece / width);
        context.simd(
            #[inline(always)]
            || {
                for (at, (row, loss)) in logits.chunks_exact_mut(width).zip(losses).enumerate() {
                    let scale = of.scale(first + at);
                    let (row, padding) = row.split_at_mut(classes);
                    padding.fill(T::ZERO);
                    *loss = if scale == 0.0 {
                        row.fill(T::ZERO);
                        T::ZERO
                    } else {
                        let label = of.labels[first + at] as usize;
                        T::from_f64(replace_row(row, label, of.options, scale))
                    };
                }
            },
        );
    });
    Ok(())
}

/// Replaces a row's logits by the gradient of its loss times `scale`, which is returned.
#[inline(always)]
fn replace_row<T: Float>(row: &mut [T], label: usize, options: CrossEntropyOptions, scale: f64) -> f64 {
    let CrossEntropyOptions { smoothing, z_loss, soft_cap, .. } = options;
    if let Some(cap) = soft_cap {
        let (cap, inverse) = (T::from_f64(cap), T::from_f64(1.0 / cap));
        row.iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
    }
    let (max, own) = (row_max(row), row[label].to_f64());
    let mean = if smoothing > 0.0 { sum_slice(row) / row.len() as f64 } else { 0.0 };
    // Of capped logits the exponentials are computed twice: the slope of the cap follows from the logits.
    let sum = match soft_cap {
        Some(_) => row.iter().map(|x| (*x - max).exp().to_f64()).sum(),
        None => {
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            sum_slice(row)
        }
    };
    let log_sum = sum.ln() + max.to_f64();
    let softmax = T::from_f64(scale * (1.0 + 2.0 * z_loss * log_sum) / sum);
    let uniform = T::from_f64(scale * smoothing / row.len() as f64);
    let target = T::from_f64(scale * (1.0 - smoothing));
    match soft_cap {
        Some(cap) => {
            let inverse = T::from_f64(1.0 / cap);
            let slope = |x: T| T::ONE - (x * inverse) * (x * inverse);
            let of_label = target * slope(row[label]);
            row.iter_mut().for_each(|x| *x = ((*x - max).exp() * softmax - uniform) * slope(*x));
            row[label] -= of_label;
        }
        None => {
            row.iter_mut().for_each(|x| *x = *x * softmax - uniform);
            row[label] -= target;
        }
    }
    scale * (log_sum - (1.0 - smoothing) * own - smoothing * mean + z_loss * log_sum * log_sum)
}
