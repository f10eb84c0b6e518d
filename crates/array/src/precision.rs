//! Mixed precision: the types of products and of activations.

use candle_core::DType;
use phalanx_kernels::Products;

/// The types of products and of activations.
///
/// As under `torch.autocast`, parameters, their gradients, statistics and losses are f32 at any precision. Products
/// (convolution, linear layers, attention) round both operands to the low type and add in f32. The result of an op,
/// and so the memory for backward, is stored in the low type. A gradient has the type of its value. f64 stays f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32-bit floats throughout.
    #[default]
    F32,
    /// 32-bit floats, which GPUs multiply with tensor cores, from operands with 10 fraction bits. A CPU, which has
    /// none, multiplies f32.
    Tf32,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision up to 65504. Gradients need a loss scale.
    F16,
}

impl Precision {
    /// All precisions.
    pub const ALL: &'static [Self] = &[Self::F32, Self::Tf32, Self::Bf16, Self::F16];

    /// The type of stored activations.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 | Self::Tf32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// The operand type for a [`Context`](crate::Context), for
    /// [`Context::with_products`](crate::Context::with_products). Operands that are rounded already lose nothing by
    /// it.
    pub fn products(self) -> Products {
        match self {
            Self::F32 | Self::Tf32 | Self::F16 => Products::F32,
            Self::Bf16 => Products::Bf16,
        }
    }

    /// The stored type of a result computed from values of type `dtype`: the low type in place of f32.
    pub fn stored(self, dtype: DType) -> DType {
        if dtype == DType::F32 { self.dtype() } else { dtype }
    }

    /// The type of a product of operands of type `dtype`.
    pub fn product(self, dtype: DType) -> DType {
        if dtype == DType::F64 { dtype } else { self.dtype() }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tf32 => "tf32",
            other => other.dtype().as_str(),
        })
    }
}

impl std::str::FromStr for Precision {
    type Err = crate::ArrayError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|precision| precision.to_string() == text);
        let unknown = || crate::ArrayError::Argument {
            name: "precision",
            value: format!("{text:?}"),
            expected: "expected f32, tf32, bf16 or f16",
        };
        found.copied().ok_or_else(unknown)
    }
}
