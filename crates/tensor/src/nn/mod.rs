//! Layers: parameters registered under PyTorch's names with PyTorch's initial values, and a forward over ops.
//!
//! A layer holds handles, so cloning one is cheap and a clone shares the parameters.

mod attention;
mod conv;
mod embedding;
mod linear;
mod norm;

pub use attention::MultiHeadAttention;
pub use conv::{Conv2d, ConvTranspose2d};
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::{BatchNorm2d, BatchNormConfig, GroupNorm, LayerNorm};
