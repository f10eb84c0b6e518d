//! Normalisation. Batch norm comes in halves, so that ranks can combine their statistics in between.

mod batch;
mod group;
mod layer;
mod small_planes;

pub use batch::{
    Activation, batch_norm_backward_input, batch_norm_backward_sums, batch_norm_forward, batch_norm_moments,
};
pub use group::{group_norm_backward, group_norm_forward};
pub use layer::{layer_norm_backward, layer_norm_forward};
