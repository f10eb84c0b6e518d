//! Optimizer steps with a factor of the learning rate for each parameter, over flat arrays.

use super::{Array, ParamUpdate};
use crate::Result;

pub use phalanx_kernels::LambOptions;

/// Steps of LAMB on a back end. Arrays are flat, of f32 or f64.
pub trait LayerwiseUpdates {
    /// Returns the direction of the next step, m̂ / (√v̂ + eps) + weight_decay·w; `moments` are the averages of gradients and
    /// of their squares. Nothing is changed.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn lamb_direction(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        moments: [&Array; 2],
    ) -> Result<Array>;

    /// Takes a step along the direction. The factor of the learning rate is √(weights / direction) from the sums of squares
    /// `squares` of whole parameters, scalars of f64 ([`phalanx_kernels::trust_ratio`]); 1 without them. With a scaled
    /// loss, `options` counts skipped steps too.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn lamb_step(
        &self,
        options: LambOptions,
        of: ParamUpdate<'_>,
        moments: [&Array; 2],
        squares: Option<[&Array; 2]>,
    ) -> Result<()>;
}
