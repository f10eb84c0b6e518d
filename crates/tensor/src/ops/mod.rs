//! Differentiable operations: each runs forward and records its own backward.
//!
//! All are functions of the tape and values, as in `torch.nn.functional`. In shapes, N is the batch, C channels, H
//! and W height and width, and T positions in a sequence.

mod activation;
mod arithmetic;
mod attention;
mod batch_norm;
mod cast;
mod collective;
mod conv;
mod conv_transpose;
mod cut;
mod dropout;
mod embedding;
mod fill;
mod gated;
mod indices;
mod linear;
mod norm;
mod overlap;
mod pool;
mod rank_split;
mod reduce;
mod rotary;
mod shape;
mod underway;

pub use crate::backend::{AttentionHeads, AttentionMask};
pub use activation::{
    UnaryOp, clamp, exp, gelu, gelu_tanh, leaky_relu, quick_gelu, relu, relu_squared, relu6, sigmoid, silu,
    tanh, unary,
};
pub use arithmetic::{add, add_scalar, broadcast_add, broadcast_mul, mul, scale, sub};
pub use attention::{AttentionOptions, attention, projected_heads, projection_part, self_attention, softmax};
pub use batch_norm::{BatchNormAffine, BatchNormStats, FusedActivation, batch_norm2d};
pub use cast::cast;
pub(crate) use collective::all_gather_stored;
pub use collective::{
    all_gather, all_reduce, copy_to_group, gather_from_group, reduce_from_group, reduce_scatter,
    split_to_group,
};
pub use conv::{Conv2dOptions, conv2d};
pub use conv_transpose::conv_transpose2d;
pub(crate) use cut::{copy_for_parts, no_ranks, param_for};
pub use cut::{gather_sequence, gathered, join_sequence, split_sequence, with_whole_sequences};
pub use dropout::{dropout, dropout_of_part, gaussian_noise};
pub use embedding::{embedding, embedding_with_fixed, select_positions, select_rows};
pub use fill::full_like;
pub use gated::{geglu, swiglu};
pub use indices::Indices;
pub(crate) use linear::linear_stored;
pub use linear::{LinearWeight, WeightLayout, linear, linear_by, matmul};
pub use norm::{group_norm, l2_normalise, layer_norm, rms_norm};
pub use pool::{PoolOptions, avg_pool2d, global_avg_pool2d, max_pool2d, upsample_nearest2d};
pub use reduce::{mean, sum, sum_over};
pub use rotary::{rotary, rotary_angles};
pub use shape::{broadcast_as, cat, narrow, pad_with_zeros, permute, reshape, transpose};
