//! Lion: the sign of an interpolated momentum.

use super::zipped;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// Options of Lion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionOptions {
    /// Learning rate.
    pub lr: f64,
    /// The decay rate of the momentum in the direction of a step, and that of the momentum itself.
    pub betas: (f64, f64),
    /// The weight decay, subtracted from the weights.
    pub weight_decay: f64,
}

/// Computes one step of Lion (Chen et al. 2023, algorithm 2); `moment` is the momentum.
///
/// The direction is the sign of β₁·moment + (1 − β₁)·grad: 0 for 0, and NaN for NaN. The moment becomes
/// β₂·moment + (1 − β₂)·grad.
///
/// # Errors
/// If the lengths differ.
pub fn lion_step<T: Float>(
    context: &Context,
    options: LionOptions,
    weights: &mut [T],
    grads: &[T],
    moment: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "lion_step";
    check_len(KERNEL, "grads", weights.len(), grads.len())?;
    check_len(KERNEL, "moment", weights.len(), moment.len())?;
    let (beta1, beta2) = options.betas;
    let (keep1, take1) = (T::from_f64(beta1), T::from_f64(1.0 - beta1));
    let (keep2, take2) = (T::from_f64(beta2), T::from_f64(1.0 - beta2));
    let (lr, shrink) = (T::from_f64(options.lr), T::from_f64(1.0 - options.lr * options.weight_decay));
    zipped(context, [weights, moment], grads, |[w, m], g| {
        for ((w, m), g) in w.iter_mut().zip(m).zip(g) {
            let mixed = keep1 * *m + take1 * *g;
            let up = if mixed > T::ZERO { T::ONE } else { mixed };
            let sign = if mixed < T::ZERO { -T::ONE } else { up };
            *w = *w * shrink - lr * sign;
            *m = keep2 * *m + take2 * *g;
        }
    });
    Ok(())
}
