//! The precision of matrix products: f32, or pairs of bf16 on CPUs with fast instructions for them.

pub(crate) mod singles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile;

#[cfg(target_arch = "x86_64")]
pub(crate) use tile::HasBf16;

/// Elements of the widest vectors.
pub(crate) const LANES: usize = 16;

/// The most vectors of a tile.
pub(crate) const WIDEST: usize = 3;

/// The precision of the products of f32 kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// f32.
    #[default]
    F32,
    /// Operands rounded to bf16 and sums in f32, in kernels that are faster that way: linear layers, 1×1 and strided
    /// convolutions. 3×3 convolutions by Winograd's method and the gradients of weights are faster in f32, and stay there.
    Bf16,
}

/// Proof that the CPU has bf16 products; uninhabited on this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum HasBf16 {}

#[cfg(not(target_arch = "x86_64"))]
impl HasBf16 {
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    pub(crate) fn detect_fast() -> Option<Self> {
        None
    }
}
