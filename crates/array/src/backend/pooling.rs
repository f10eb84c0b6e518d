//! Pooling and nearest-neighbour up-sampling of [N, C, H, W].

use super::Array;
use crate::Result;

pub use phalanx_kernels::Pool2dShape;

/// The sizes of the result of pooling.
pub(super) fn output_dims(shape: &Pool2dShape) -> Vec<usize> {
    vec![shape.batch, shape.channels, shape.out_height(), shape.out_width()]
}

/// The sizes of the input of pooling.
pub(super) fn input_dims(shape: &Pool2dShape) -> Vec<usize> {
    vec![shape.batch, shape.channels, shape.height, shape.width]
}

/// Pooling on a back end. Gradients of elements of 16 bits are f32.
pub trait Pooling {
    /// Returns the largest element of every window, and its position for backward: u32, of the same shape.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)>;

    /// Returns the gradient of the input of [`Pooling::max_pool2d`] from the output's gradient and the positions.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, positions: &Array) -> Result<Array>;

    /// Returns the mean of every window; with `count_padding` the border counts as zeros.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn avg_pool2d(&self, shape: &Pool2dShape, count_padding: bool, x: &Array) -> Result<Array>;

    /// Returns the gradient of the input of [`Pooling::avg_pool2d`].
    ///
    /// # Errors
    /// If the element type is not supported.
    fn avg_pool2d_backward(&self, shape: &Pool2dShape, count_padding: bool, dy: &Array) -> Result<Array>;

    /// Repeats each pixel of [N, C, H, W] `factor` times in both directions.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array>;

    /// Returns the gradient of the input of [`Pooling::upsample_nearest2d`], of sizes `dims`.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn upsample_nearest2d_backward(&self, dims: [usize; 4], factor: usize, dy: &Array) -> Result<Array>;
}
