//! Normalisation. Batch norm has fused kernels, and separate halves between which ranks can combine their statistics.

mod arguments;
mod batch;
mod group;
mod layer;
mod rms;
mod rows;

pub use arguments::{GroupNormShape, NormBackward, NormGrads, NormInput, NormOutput};
pub use batch::{
    Activation, ActivationMask, Affine, BatchNormBackward, BatchNormGrads, BatchNormOutput, Epilogue,
    batch_norm_backward_input, batch_norm_backward_sums, batch_norm_forward, batch_norm_moments,
    batch_norm_train, batch_norm_train_backward,
};
pub use group::{group_norm_backward, group_norm_forward};
pub use layer::{layer_norm_backward, layer_norm_forward};
pub use rms::{RmsNormBackward, rms_norm_backward, rms_norm_forward};
