//! LAMB: Adam with a learning rate for each parameter tensor, in proportion to its norm.

use super::zipped;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// Options of LAMB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LambOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// The number added to √v̂.
    pub eps: f64,
    /// The weight decay, added to the direction.
    pub weight_decay: f64,
    /// The number of this step from 1, for the bias correction of the moments.
    pub step: u64,
}

impl LambOptions {
    /// Returns the factors of the bias correction: of the first moment, and of the root of the second one.
    pub fn corrections(&self) -> (f64, f64) {
        let power = i32::try_from(self.step).unwrap_or(i32::MAX);
        let (beta1, beta2) = self.betas;
        (1.0 / (1.0 - beta1.powi(power)), 1.0 / (1.0 - beta2.powi(power)).sqrt())
    }
}

/// Returns the factor of a learning rate for a parameter tensor, ‖weights‖ / ‖direction‖, from the sums of squares. It is 1
/// if one of them is 0 or NaN.
pub fn trust_ratio(weights: f64, direction: f64) -> f64 {
    if weights > 0.0 && direction > 0.0 { weights.sqrt() / direction.sqrt() } else { 1.0 }
}

/// The scalars of a step in the type of its elements.
#[derive(Clone, Copy)]
struct Scalars<T> {
    keep1: T,
    take1: T,
    keep2: T,
    take2: T,
    inverse1: T,
    inverse2: T,
    eps: T,
    decay: T,
}

impl<T: Float> Scalars<T> {
    fn of(options: LambOptions) -> Self {
        let ((beta1, beta2), (inverse1, inverse2)) = (options.betas, options.corrections());
        Self {
            keep1: T::from_f64(beta1),
            take1: T::from_f64(1.0 - beta1),
            keep2: T::from_f64(beta2),
            take2: T::from_f64(1.0 - beta2),
            inverse1: T::from_f64(inverse1),
            inverse2: T::from_f64(inverse2),
            eps: T::from_f64(options.eps),
            decay: T::from_f64(options.weight_decay),
        }
    }

    /// Returns the new moments of an element.
    #[inline(always)]
    fn moments(&self, grad: T, first: T, second: T) -> (T, T) {
        (self.keep1 * first + self.take1 * grad, self.keep2 * second + self.take2 * grad * grad)
    }

    /// Returns the direction of an element from its new moments.
    #[inline(always)]
    fn direction(&self, weight: T, first: T, second: T) -> T {
        first * self.inverse1 / (second.sqrt() * self.inverse2 + self.eps) + self.decay * weight
    }
}

/// Computes the direction of the next step of LAMB (You et al. 2020), m̂ / (√v̂ + eps) + weight_decay·w, without a change of
/// the moments `first` and `second`.
///
/// # Errors
/// If the lengths differ.
pub fn lamb_direction<T: Float>(
    context: &Context,
    options: LambOptions,
    weights: &[T],
    grads: &[T],
    [first, second]: [&[T]; 2],
    direction: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "lamb_direction";
    let lengths = [("weights", weights), ("grads", grads), ("first", first), ("second", second)];
    for (name, found) in lengths {
        check_len(KERNEL, name, direction.len(), found.len())?;
    }
    let by = Scalars::of(options);
    let piece = context.piece(direction.len(), 16);
    context.run_chunks(direction, piece, |task, out| {
        let range = task * piece..task * piece + out.len();
        let inputs = [weights, grads, first, second].map(|all| &all[range.clone()]);
        context.simd(
            #[inline(always)]
            || {
                let [w, g, m, v] = inputs;
                for ((((out, w), g), m), v) in out.iter_mut().zip(w).zip(g).zip(m).zip(v) {
                    let (m, v) = by.moments(*g, *m, *v);
                    *out = by.direction(*w, m, v);
                }
            },
        );
    });
    Ok(())
}

/// Computes one step of LAMB over elements that share the factor `ratio` of the learning rate; `first` and `second` are
/// the moments. The direction has the bits of [`lamb_direction`].
///
/// # Errors
/// If the lengths differ.
pub fn lamb_step<T: Float>(
    context: &Context,
    options: LambOptions,
    ratio: f64,
    weights: &mut [T],
    grads: &[T],
    [first, second]: [&mut [T]; 2],
) -> Result<()> {
    const KERNEL: &str = "lamb_step";
    check_len(KERNEL, "grads", weights.len(), grads.len())?;
    check_len(KERNEL, "first", weights.len(), first.len())?;
    check_len(KERNEL, "second", weights.len(), second.len())?;
    let (by, step) = (Scalars::of(options), T::from_f64(options.lr * ratio));
    zipped(context, [weights, first, second], grads, |[w, m, v], g| {
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            (*m, *v) = by.moments(*g, *m, *v);
            *w -= step * by.direction(*w, *m, *v);
        }
    });
    Ok(())
}
