//! Products of bf16 numbers with sums in f32.
//!
//! A bf16 number is the upper half of an f32: the same range, 8 bits of precision. Processors with `avx512_bf16`
//! multiply and add pairs of them at twice the rate of f32; there the kernels here keep operands as pairs along the
//! sum. Elsewhere numbers are widened and multiplied as f32: the storage is halved, the speed is f32's.
//!
//! - [`matmul_bf16`]: batched products.
//! - [`conv2d_forward_bf16`], [`conv2d_backward_input_bf16`], [`conv2d_backward_weight_bf16`]: convolution of maps and
//!   weights in bf16; the gradient of the weights is f32, as an optimizer wants it.
//! - [`Products`] makes the kernels for f32 slices round their operands and multiply in bf16.

mod conv;
mod convert;
#[cfg(target_arch = "x86_64")]
mod gather;
mod matmul;
mod pairs;
#[cfg(target_arch = "x86_64")]
mod tile;

pub use conv::{conv2d_backward_input_bf16, conv2d_backward_weight_bf16, conv2d_forward_bf16};
pub use convert::{narrow, widen};

pub(crate) use convert::round_bits;
pub use matmul::matmul_bf16;

pub(crate) use conv::{backward_input_rounded, forward_rounded, suits};
pub(crate) use matmul::matmul_rounded;
#[cfg(target_arch = "x86_64")]
pub(crate) use tile::HasBf16;

/// What kernels for f32 slices multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// f32 numbers.
    #[default]
    F32,
    /// Operands rounded to bf16, with sums in f32, where the processor is faster at that: linear layers, 1×1
    /// convolutions and those with strides. What is faster in f32, as 3×3 convolutions by Winograd's method and the
    /// gradients of their weights, stays there.
    Bf16,
}

/// That the processor has products of bf16; elsewhere there is no such value.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum HasBf16 {}

#[cfg(not(target_arch = "x86_64"))]
impl HasBf16 {
    pub(crate) fn detect() -> Option<Self> {
        None
    }
}
