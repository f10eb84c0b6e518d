//! Launchers: a function for each kernel or for a few that follow each other, a file for each family.
//!
//! They check lengths and types, choose a grid, and launch on the computing stream. What they give is new memory, except where
//! they say that they write to an argument. Elements of 16 bits are computed with in f32. Grids follow from sizes alone, so that
//! sums have one order whatever the device.

mod sources;

mod grid;

mod binary;
mod elementwise;
mod memory;
mod shapes;
mod sums;

mod softmax;

mod attention;
mod row_norms;
mod scores;

mod channels;

mod batch_norm;
mod group_norm;

mod depthwise;
mod images;
mod lookups;
mod losses;
mod pooling;
mod random;
mod updates;

pub mod channels_last;

pub use attention::{AttentionSizes, attention, attention_backward, attention_supports};
pub use batch_norm::{
    BatchNorm, BatchNormBackward, batch_norm, batch_norm_affine_gradients, batch_norm_backward,
    batch_norm_fixed, batch_norm_gradient_sums, batch_norm_running, batch_norm_statistics, batch_norm_sums,
    batch_norm_train, batch_norm_train_backward,
};
pub use binary::{BinaryOp, binary, mul_backward, sum_to_shape};
pub use depthwise::{depthwise, depthwise_backward_input, depthwise_backward_weight, depthwise_supports};
pub use elementwise::{affine, neg, unary, unary_backward};
pub use group_norm::{group_norm, group_norm_backward};
pub use images::{ImageBatch, images};
pub use lookups::{embedding, embedding_backward, progression};
pub use losses::{
    PairLoss, cross_entropy, cross_entropy_backward, kl_standard_normal_backward, pair_loss,
    pair_loss_backward,
};
pub use memory::{accumulate, convert, convert_to, count_up, fill};
pub use pooling::{
    avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward, upsample_nearest2d,
    upsample_nearest2d_backward,
};
pub use random::{StreamKey, dropout, dropout_mask, normal, uniform};
pub use row_norms::{NormInputs, l2_normalise, l2_normalise_backward, layer_norm, layer_norm_backward};
pub use scores::scale_and_mask;
pub use shapes::{broadcast_as, cat, narrow, pad_with_zeros, permute};
pub use softmax::{softmax, softmax_backward};
pub use sources::ALL as SOURCES;
pub use sums::{sum_all, sum_over};
pub use updates::{
    StepInputs, adam_step, clip_factor, ema_step, loss_scale_step, scale_by, sgd_step, sum_of_squares,
};
