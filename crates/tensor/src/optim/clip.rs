//! Clipping gradients by their global norm (Pascanu et al. 2013).

use phalanx_kernels::{scale, sum_of_squares};

use super::owned;
use crate::storage::{Contiguous, dispatch, with_slice_mut};
use crate::store::FlatParam;
use crate::{Context, Result};

/// The sum of squares over the gradients of owned elements, in f64 and a fixed order. Ranks that own shards add theirs up.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn grad_sum_of_squares(params: &[FlatParam], context: &Context) -> Result<f64> {
    const OP: &str = "gradient norm";
    let mut total = 0.0;
    for param in owned(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        let read = Contiguous::locked(OP, grads.tensor())?;
        for (at, _) in param.owned_groups() {
            total += dispatch!(OP, grads.dtype(), T => {
                Ok::<_, crate::TensorError>(sum_of_squares(context, &read.slice::<T>()?[at]))
            })?;
        }
    }
    Ok(total)
}

/// Multiplies the gradients of owned elements by `factor`.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn scale_grads(params: &[FlatParam], factor: f64, context: &Context) -> Result<()> {
    const OP: &str = "scale gradients";
    for param in owned(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        dispatch!(OP, grads.dtype(), T => with_slice_mut::<T, _>(OP, grads.tensor(), |values| {
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
pub fn clip_grad_norm(params: &[FlatParam], max_norm: f64, context: &Context) -> Result<f64> {
    clip_to_norm(params, grad_sum_of_squares(params, context)?.sqrt(), max_norm, context)
}

/// Scales gradients whose global L2 norm is `norm` so that it is at most `max_norm`, and returns `norm`. Ranks that own shards
/// have it as the root of the sum of all their [`grad_sum_of_squares`]. A norm that is not finite scales nothing.
///
/// # Errors
/// If gradients are not on the CPU.
pub fn clip_to_norm(params: &[FlatParam], norm: f64, max_norm: f64, context: &Context) -> Result<f64> {
    if norm.is_finite() && norm > max_norm {
        // The small number is PyTorch's, so that both clip alike.
        scale_grads(params, max_norm / (norm + 1e-6), context)?;
    }
    Ok(norm)
}
