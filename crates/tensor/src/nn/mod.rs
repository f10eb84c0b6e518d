//! Layers: parameters with PyTorch's names and initial values, and a forward over ops.
//!
//! A layer holds handles, so cloning it is cheap and shares the parameters.

mod adapter;
mod attention;
mod conv;
mod embedding;
mod linear;
mod norm;

pub use attention::MultiHeadAttention;
pub use conv::{Conv2d, ConvTranspose2d};
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::{BatchNorm2d, BatchNormConfig, GroupNorm, LayerNorm, RmsNorm};
