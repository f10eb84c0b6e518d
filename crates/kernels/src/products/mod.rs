//! What products multiply: f32 numbers, or pairs of bf16 where the processor has instructions for them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod tile;

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
