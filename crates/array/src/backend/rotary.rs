//! Rotary position embeddings (Su et al. 2021).

use super::Array;
use crate::Result;

/// Cosines and sines of positions, f32 [.., D/2].
#[derive(Debug, Clone)]
pub struct RotaryAngles {
    /// The cosines.
    pub cos: Array,
    /// The sines.
    pub sin: Array,
}

/// Rotary position embeddings on a back end.
pub trait RotaryEmbeddings {
    /// Returns cosines and sines of each position (u32) times each frequency (f64 `[D/2]`, on the host), times `scale`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn rotary_angles(&self, positions: &Array, frequencies: &[f64], scale: f64) -> Result<RotaryAngles>;

    /// Rotates the pairs (i, i + D/2) of `x` [.., heads, D] by angles [.., D/2], back if `inverse`. Gradients of 16 bits
    /// are widened and not rounded again.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn rotary(&self, x: &Array, angles: &RotaryAngles, inverse: bool) -> Result<Array>;
}
