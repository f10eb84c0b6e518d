//! Momentum applied before gradients are sent, as in Deep Gradient Compression.

use crate::context::Context;
use crate::error::{Result, check_len};

/// Computes u ← momentum·u + g and v ← v + u (Lin et al. 2018).
///
/// `velocity` is u, and `sum` is v, the gradient still to be sent. Both are cleared where an element is sent
/// ([`super::clear_indices`]): momentum correction and momentum factor masking.
///
/// # Errors
/// If the lengths differ.
pub fn accumulate_momentum(
    context: &Context,
    momentum: f32,
    gradients: &[f32],
    velocity: &mut [f32],
    sum: &mut [f32],
) -> Result<()> {
    const KERNEL: &str = "accumulate_momentum";
    check_len(KERNEL, "velocity", gradients.len(), velocity.len())?;
    check_len(KERNEL, "sum", gradients.len(), sum.len())?;
    context.simd(
        #[inline(always)]
        || {
            for ((u, v), g) in velocity.iter_mut().zip(sum).zip(gradients) {
                *u = momentum * *u + g;
                *v += *u;
            }
        },
    );
    Ok(())
}
