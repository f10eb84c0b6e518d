//! Launchers: a function for each kernel or for a few that follow each other, a file for each family.
//!
//! They check lengths and types, choose a grid, and launch on the computing stream. What they give is new memory, except where
//! they say that they write to an argument. Elements of 16 bits are computed with in f32. Grids follow from sizes alone, so that
//! sums have one order whatever the device.
//!
//! Maps are of sizes N, C, H, W. Where it matters how they lie, a launcher takes that as a [`Layout`](crate::Layout): in that
//! order, or channels-last, as tensor cores read them. What works on elements one by one does not care; batch norm takes
//! channels-last maps as [N·H·W, C, 1]; arrays one after the other along their channels are those of [`cat`] along the last
//! dimension of [N·H·W, C].
//!
//! # To add a kernel
//!
//! 1. A template and its instances in `kernels/FAMILY.cu`, declared by `KERNEL(name_TYPE, threads, parameters…)` of the prelude
//!    within `FOR_TYPE(…)`; a new file is a line in `sources.rs`. There are no headers, no sums of floats by atomics, and sizes of 64 bits
//!    where elements are counted. Packs of 16 bytes (`each`, `load`, `store`) where memory's speed counts, with a way for
//!    addresses that are not aligned. What only a GPU has gets a plain twin under `PHALANX_FIBRES`.
//! 2. A launcher here, which checks what it is given.
//! 3. A test in `tests/kernels/`, against the CPU's kernel in f64 on drawn shapes. `tests/toolkit.rs` compiles it by NVIDIA's
//!    compiler where there is one, and fails if it spills registers.

mod sources;

mod grid;

mod binary;
mod elementwise;
mod gated;
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
mod exact_squares;
mod images;
mod lookups;
mod losses;
mod pooling;
mod random;
mod updates;

mod codec_chunks;
mod codec_entries;
mod codec_low_rank;

pub use attention::{AttentionSizes, attention, attention_backward, attention_supports};
pub use batch_norm::{
    BatchNorm, BatchNormBackward, batch_norm, batch_norm_affine_gradients, batch_norm_backward,
    batch_norm_fixed, batch_norm_gradient_sums, batch_norm_running, batch_norm_statistics, batch_norm_sums,
    batch_norm_train, batch_norm_train_backward,
};
pub use binary::{binary, mul_backward, sum_to_shape};
pub use codec_chunks::{ChunkMessages, chunk_errors, decode_chunks, encode_chunks, feed_back, spoil};
pub use codec_entries::{
    Drawn, gather_momentum, hold, index_bytes, largest, largest_words, scatter, take_away,
};
pub use codec_low_rank::{
    expand, move_runs, orthogonalise, project, project_back, project_back_numbers, scale,
};
pub use depthwise::{depthwise, depthwise_backward_input, depthwise_backward_weight, depthwise_supports};
pub use elementwise::{affine, neg, unary, unary_backward};
pub use exact_squares::{exact_squares, exact_squares_value};
pub use gated::{geglu, geglu_backward};
pub use group_norm::{group_norm, group_norm_backward};
pub use images::{ImageBatch, images, put_rows};
pub use lookups::{embedding, embedding_backward, progression};
pub use losses::{
    PairLoss, cross_entropy, cross_entropy_backward, kl_standard_normal_backward, pair_loss,
    pair_loss_backward,
};
pub use memory::{accumulate, convert, convert_on, convert_to, count_up, fill, write};
pub use pooling::{
    avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward, upsample_nearest2d,
    upsample_nearest2d_backward,
};
pub use random::{StreamKey, dropout, dropout_mask, normal, uniform};
pub use row_norms::{NormInputs, l2_normalise, l2_normalise_backward, layer_norm, layer_norm_backward};
pub use scores::scale_and_mask;
pub use shapes::{broadcast_as, cat, narrow, pad_with_zeros, permute};
pub use softmax::{softmax, softmax_backward};
pub use sources::all as sources;
pub use sums::{sum_all, sum_over};
pub use updates::{
    EmaInputs, OnDevice, ScaledStep, StepInputs, StepNumbers, adam_step, clip_factor, ema_step,
    loss_scale_step, not_finite, scale_by, sgd_step, sum_of_squares,
};
