//! Kernel launchers: a file for each family, and a function for each kernel or short sequence of kernels.
//!
//! Launchers check lengths and types, choose a grid, and launch on the compute stream. They return new memory, except where they
//! document a write to an argument. The compute type of 16-bit elements is f32. Grids depend on sizes alone, so that sums have
//! one order on every device.
//!
//! Maps have sizes N, C, H, W. Where the layout matters, a launcher takes a [`TensorLayout`](crate::TensorLayout). Elementwise
//! kernels work on any layout. Batch norm takes channels-last maps as [N·H·W, C, 1]. To concatenate channels-last maps, use
//! [`cat`] along the last dimension of [N·H·W, C].
//!
//! # To add a kernel
//!
//! 1. Write a template and its instances in `kernels/FAMILY.cu`, declared by the prelude's `KERNEL(name_TYPE, threads,
//!    parameters…)` within `FOR_TYPE(…)`. A new file is a line in `sources.rs`. Include no headers, use no atomic sums of floats,
//!    and count elements in 64 bits. Move packs of 16 bytes (`each`, `load`, `store`) where memory bandwidth matters, with a path
//!    for unaligned addresses. GPU-only instructions get a plain version under `PHALANX_FIBRES`.
//! 2. Write a launcher here that checks its arguments.
//! 3. Test it in `tests/it/kernels/` against the CPU kernel in f64 on random shapes. `tests/it/toolkit.rs` compiles it by
//!    NVIDIA's compiler where it is installed, and fails if it spills registers.

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
mod attention_inputs;
mod row_norms;
mod scores;

mod channels;

mod batch_norm;
mod group_norm;

mod cut_cross_entropy;
mod depthwise;
mod dropout;
mod exact_squares;
mod gradient_scaling;
mod images;
mod lookups;
mod losses;
mod pooling;
mod random;
mod rms_norm;
mod rotary;
mod updates;

mod layerwise;

mod codec_chunks;
mod codec_entries;
mod codec_low_rank;

pub use attention::{AttentionGradients, attention, attention_backward, attention_supports};
pub use attention_inputs::{AttentionInputs, AttentionMask, AttentionOperands, AttentionSizes};
pub use batch_norm::{
    BatchNorm, BatchNormBackward, batch_norm, batch_norm_affine_gradients, batch_norm_backward,
    batch_norm_fixed, batch_norm_gradient_sums, batch_norm_running, batch_norm_statistics, batch_norm_sums,
    batch_norm_train, batch_norm_train_backward,
};
pub use binary::{binary, mul_backward, sum_to_shape};
pub use codec_chunks::{ChunkMessages, add_residual, chunk_errors, decode_chunks, encode_chunks, poison};
pub use codec_entries::{
    RandomEntries, accumulate_momentum, index_bytes, scatter, store_residual, subtract_entries, top_k,
    top_k_words,
};
pub use codec_low_rank::{
    expand, move_runs, orthogonalise, project, project_back, project_back_numbers, scale,
};
pub use cut_cross_entropy::{CrossEntropyColumns, cross_entropy_parts, cross_entropy_slopes};
pub use depthwise::{depthwise, depthwise_backward_input, depthwise_backward_weight, depthwise_supports};
pub use dropout::{Dropout, SamplePart, dropout};
pub use elementwise::{affine, neg, unary, unary_backward};
pub use exact_squares::{exact_squares, exact_squares_value};
pub use gated::{geglu, geglu_backward, swiglu, swiglu_backward};
pub use gradient_scaling::{ScaledStep, clip_factor, loss_scale_step, not_finite, scale_by, sum_of_squares};
pub use group_norm::{group_norm, group_norm_backward};
pub use images::{ImageBatch, ImageBlend, images, put_rows};
pub use layerwise::{lamb_direction, lamb_step};
pub use lookups::{embedding, embedding_backward, progression};
pub use losses::{
    CrossEntropyTargets, PairLoss, cross_entropy, kl_standard_normal_backward, pair_loss, pair_loss_backward,
};
pub use memory::{accumulate, convert, convert_on, convert_to, count_up, fill, write};
pub use pooling::{
    avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward, upsample_nearest2d,
    upsample_nearest2d_backward,
};
pub use random::{StreamKey, normal, uniform};
pub use rms_norm::{RmsNormInputs, rms_norm, rms_norm_backward};
pub use rotary::{rotary, rotary_angles};
pub use row_norms::{NormInputs, l2_normalise, l2_normalise_backward, layer_norm, layer_norm_backward};
pub use scores::{drop_weights, scale_and_mask};
pub use shapes::{broadcast_as, cat, narrow, pad_with_zeros, permute};
pub use softmax::{softmax, softmax_backward};
pub use sources::all as sources;
pub use sums::{sum_all, sum_over};
pub use updates::{
    EmaInputs, StepInputs, StepOptions, StepScalars, adam_step, ema_step, lion_step, sgd_step,
};
