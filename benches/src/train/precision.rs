//! The precision of products and activations.

use clap::ValueEnum;
use phalanx_kernels::Products;

/// The precision of products and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Precision {
    F32,
    /// Activations in f32, products of tensor cores
    Tf32,
    /// Activations in bf16
    Bf16,
    /// Activations in f16
    F16,
    /// Activations in f32, products of bf16 where they are faster
    Bf16Products,
}

impl Precision {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Bf16Products => "bf16-products",
        }
    }

    pub(super) fn products(self) -> Products {
        match self {
            Self::F32 | Self::Tf32 | Self::F16 => Products::F32,
            Self::Bf16 | Self::Bf16Products => Products::Bf16,
        }
    }

    /// The type of stored activations.
    pub(super) fn kept(self) -> phalanx_tensor::Precision {
        match self {
            Self::F32 | Self::Bf16Products => phalanx_tensor::Precision::F32,
            Self::Tf32 => phalanx_tensor::Precision::Tf32,
            Self::Bf16 => phalanx_tensor::Precision::Bf16,
            Self::F16 => phalanx_tensor::Precision::F16,
        }
    }

    /// The loss scale. It is constant, because a dynamic scale would not change in so few steps.
    pub(super) fn loss_scale(self) -> f64 {
        if self == Self::F16 { 65_536.0 } else { 1.0 }
    }

    /// The precision of the peer.
    pub(super) fn of_peer(self) -> &'static str {
        if self == Self::Bf16Products { "bf16" } else { self.name() }
    }
}
