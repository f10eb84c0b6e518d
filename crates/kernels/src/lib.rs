//! CPU kernels for training, over plain slices.
//!
//! Libraries for inference have the forward kernels. Training also needs the gradients of a convolution's input and
//! weights, the statistics of a batch norm and their derivative, the indices of pooling maxima, and optimizer steps in
//! one pass. This crate has only these: no tensors, no autograd, no ranks. Every kernel takes slices and sizes, checks
//! them, and returns an error that names the argument instead of panicking.
//!
//! - [`Context`] has the threads and the scratch memory of a caller. The same input with the same number of threads gives
//!   the same bits, and with the same [`Context::with_parts`] on any number of threads.
//! - Kernels are generic over [`Float`]: f32 for training, f64 for checking gradients.
//! - Gradient codecs ([`quantise_int8`], [`top_k`], [`compress_lossless`] and more) turn numbers into fewer bytes and back,
//!   with the same bits on every CPU.
//! - bf16 and f16 are storage types ([`Half`]): kernels widen slices to compute, and round the results.
//! - The instruction set (AVX-512, AVX2 with FMA, NEON, or the baseline of the architecture) is chosen at run time. A
//!   [`Level`] or the variable `PHALANX_SIMD` forces one.
//! - Matrix products come from the `gemm` crate.
//!
//! Four modules have `unsafe`: `gemm_call` (raw pointers), `fork_join` (a loop body borrowed by threads), `columns`
//! (columns of a matrix written by several threads) and `products::tile` (AVX-512 instructions for bf16).
//!
//! Layouts are row-major: images [N, C, H, W], convolution weights [O, I, KH, KW], as in PyTorch.
//!
//! # Example
//!
//! A convolution and both of its gradients:
//!
//! ```
//! use phalanx_kernels::{Context, Conv2dShape, conv2d_backward_input, conv2d_backward_weight, conv2d_forward};
//!
//! # fn main() -> Result<(), phalanx_kernels::KernelError> {
//! let context = Context::new(1);
//! let shape = Conv2dShape {
//!     batch: 1, in_channels: 2, height: 5, width: 4, out_channels: 3,
//!     kernel: [3, 3], stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1,
//! };
//! let x = vec![1.0_f32; shape.input_len()];
//! let w = vec![0.5_f32; shape.weight_len()];
//! let mut y = vec![0.0; shape.output_len()];
//! conv2d_forward(&context, &shape, &x, &w, None, &mut y)?;
//! // In the middle of the image all 9 taps of both channels count.
//! assert_eq!(y[5], 9.0);
//!
//! let dy = vec![1.0; y.len()];
//! let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
//! conv2d_backward_input(&context, &shape, &dy, &w, &mut dx)?;
//! conv2d_backward_weight(&context, &shape, &x, &dy, &mut dw, false)?;
//! assert_eq!(dw[4], 20.0);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod attention;
mod bfloat;
mod binary;
mod codec;
mod columns;
mod context;
mod conv;
mod cross_entropy;
mod cross_entropy_columns;
mod dropout;
mod embedding;
mod error;
mod exact;
mod float;
mod fork_join;
mod gated;
mod gemm_call;
mod half;
mod hash;
mod level;
mod linear;
mod loss_scale;
mod math;
mod matmul;
mod norm;
mod optim;
mod permute;
mod pieces;
mod pool;
mod products;
mod reduce;
mod rotary;
mod softmax;
mod transpose;
mod unary;
mod vectorized;

pub use crate::half::{Half, add_half, narrow_half, round_half, round_half_to, widen_half};
pub use ::half::{bf16, f16};
pub use attention::{
    AttentionElement, AttentionGrads, AttentionInputs, AttentionMask, AttentionOperands, AttentionShape,
    attention_backward, attention_forward,
};
pub use bfloat::{narrow, widen};
pub use binary::{BinaryOp, binary, sum_columns, sum_rows};
pub use codec::{
    ChunkFormat, ChunkKind, Run, ThinMatrix, accumulate_momentum, clear_indices, compress_lossless,
    decompress_lossless, dequantise_int4, dequantise_int8, dequantise_stochastic, gather_indices, int4_len,
    largest_magnitude, lossless_bound, low_rank_product, mixed, mixed_with, orthogonalise, quantise_int4,
    quantise_int8, quantise_stochastic, random_indices, scales_len, scatter_add, sign_decode, sign_encode,
    sign_len, top_k, uniform,
};
pub use context::Context;
pub use conv::{
    Conv2dShape, ConvTranspose2dShape, conv_transpose2d_backward_input, conv_transpose2d_backward_weight,
    conv_transpose2d_forward, conv2d_backward_bias, conv2d_backward_input, conv2d_backward_input_bf16,
    conv2d_backward_weight, conv2d_backward_weight_bf16, conv2d_forward, conv2d_forward_bf16,
};
pub use cross_entropy::{CrossEntropyOptions, CrossEntropyRows, cross_entropy_rows};
pub use cross_entropy_columns::{
    CrossEntropyColumns, ROW_PARTS, cross_entropy_of_parts, cross_entropy_parts, cross_entropy_slopes,
    weight_of_most_probable,
};
pub use dropout::{Dropout, SamplePart, dropout};
pub use embedding::embedding_backward;
pub use error::{KernelError, Result};
pub use exact::ExactSquares;
pub use float::Float;
pub use gated::{SwigluBackward, geglu_backward, geglu_forward, swiglu_backward, swiglu_forward};
pub use hash::fnv1a;
pub use level::{LEVEL_VARIABLE, Level};
pub use linear::linear_forward;
pub use loss_scale::{LOSS_SCALE_STATE, LossScaleOptions, LossScaleStep, clip_factor, loss_scale_step};
pub use matmul::{
    Matrix, MatrixMut, RoundedFactor, RoundedResult, matmul_batched, matmul_bf16, multiply_row_bf16,
};
pub use norm::{
    Activation, ActivationMask, Affine, BatchNormBackward, BatchNormGrads, BatchNormOutput, Epilogue,
    GroupNormShape, NormBackward, NormGrads, NormInput, NormOutput, RmsNormBackward,
    batch_norm_backward_input, batch_norm_backward_sums, batch_norm_forward, batch_norm_moments,
    batch_norm_train, batch_norm_train_backward, group_norm_backward, group_norm_forward,
    layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward,
};
pub use optim::{
    AdamOptions, EmaOptions, LambOptions, LionOptions, SgdOptions, adam_step, ema_step, lamb_direction,
    lamb_step, lion_step, sgd_step, trust_ratio,
};
pub use permute::{Movable, permute};
pub use pieces::{Stored, StoredMut, by_rows, by_rows_with_sums};
pub use pool::{
    Pool2dShape, avg_pool2d_backward, avg_pool2d_forward, max_pool2d_backward, max_pool2d_forward,
    upsample_nearest2d_backward, upsample_nearest2d_forward,
};
pub use products::Products;
pub use reduce::{scale, sum, sum_of_squares};
pub use rotary::{Rotation, rotary};
pub use softmax::{softmax_rows_backward, softmax_rows_forward};
pub use unary::{UnaryOp, unary_backward, unary_forward};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
