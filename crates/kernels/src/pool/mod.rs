//! Pooling and nearest up-sampling over planes.

mod average;
mod max;
mod shape;
mod upsample;

pub use average::{avg_pool2d_backward, avg_pool2d_forward};
pub use max::{max_pool2d_backward, max_pool2d_forward};
pub use shape::Pool2dShape;
pub use upsample::{upsample_nearest2d_backward, upsample_nearest2d_forward};
