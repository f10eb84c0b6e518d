//! Normalisation. Batch norm comes whole, and in halves between which ranks can combine their statistics.

mod batch;
mod group;
mod layer;

pub use batch::{
    Activation, ActivationMask, Affine, BatchNormGrads, Finish, batch_norm_backward_input,
    batch_norm_backward_sums, batch_norm_forward, batch_norm_moments, batch_norm_train,
    batch_norm_train_backward,
};
pub use group::{group_norm_backward, group_norm_forward};
pub use layer::{layer_norm_backward, layer_norm_forward};
