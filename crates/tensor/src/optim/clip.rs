//! Clipping gradients by their global norm (Pascanu et al. 2013).

use phalanx_kernels::{scale, sum_of_squares};

use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::Unit;
use crate::{Context, Result};

/// The sum of squares over all gradients, in f64 and a fixed order. Ranks that hold shards add theirs up.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn grad_sum_of_squares(units: &[Unit], context: &Context) -> Result<f64> {
    const OP: &str = "gradient norm";
    let mut total = 0.0;
    for unit in units.iter().filter(|unit| unit.trainable()) {
        let Some(grads) = unit.grads()? else { continue };
        let read = Contiguous::locked(OP, &grads)?;
        total += dispatch!(OP, grads.dtype(), T => {
            Ok::<_, crate::TensorError>(sum_of_squares(context, read.slice::<T>()?))
        })?;
    }
    Ok(total)
}

/// Multiplies all gradients by `factor`.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn scale_grads(units: &[Unit], factor: f64, context: &Context) -> Result<()> {
    const OP: &str = "scale gradients";
    for unit in units.iter().filter(|unit| unit.trainable()) {
        let Some(grads) = unit.grads()? else { continue };
        dispatch!(OP, grads.dtype(), T => with_slice_mut::<T, _>(OP, &grads, |values| {
            scale(context, factor, values);
            Ok(())
        }))?;
    }
    Ok(())
}

/// Scales gradients so that their global L2 norm is at most `max_norm`, and returns the norm before. A norm that
/// is not finite is returned as it is and nothing is scaled: the caller decides what a broken step means.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn clip_grad_norm(units: &[Unit], max_norm: f64, context: &Context) -> Result<f64> {
    clip_to_norm(units, grad_sum_of_squares(units, context)?.sqrt(), max_norm, context)
}

/// Clips gradients whose `norm` is known already: ranks that hold shards have the root of the sum of all their
/// [`grad_sum_of_squares`].
///
/// # Errors
/// If gradients are not on the CPU.
pub fn clip_to_norm(units: &[Unit], norm: f64, max_norm: f64, context: &Context) -> Result<f64> {
    if norm.is_finite() && norm > max_norm {
        // The small number is PyTorch's, so that both clip alike.
        scale_grads(units, max_norm / (norm + 1e-6), context)?;
    }
    Ok(norm)
}
