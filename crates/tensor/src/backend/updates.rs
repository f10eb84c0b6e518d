//! Steps of optimizers over flat arrays, and what is done with gradients before.

use super::Array;
use crate::Result;

pub use phalanx_kernels::{AdamOptions, SgdOptions};

/// How a back end changes parameters. Arrays are flat, of f32 or f64, and written in place.
pub trait Updates {
    /// One step of gradient descent; `buffer` is the momentum's, if there is momentum.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn sgd_step(
        &self,
        options: SgdOptions,
        weights: &Array,
        grads: &Array,
        buffer: Option<&Array>,
    ) -> Result<()>;

    /// One step of Adam; `moments` are the averages of gradients and of their squares.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn adam_step(
        &self,
        options: AdamOptions,
        weights: &Array,
        grads: &Array,
        moments: [&Array; 2],
    ) -> Result<()>;

    /// average ← decay·average + (1 − decay)·weights.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn ema_step(&self, decay: f64, average: &Array, weights: &Array) -> Result<()>;

    /// The sum of the squares of all elements, added in f64 and in a fixed order: a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn sum_of_squares(&self, x: &Array) -> Result<Array>;

    /// to ← factor·to, where `factor` is a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()>;

    /// What gradients are to be multiplied by so that their norm is at most `max_norm`, from the sum of their squares; 1 if
    /// they need not be, or the norm is not finite.
    ///
    /// # Errors
    /// If the element type is not f64.
    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array>;
}
