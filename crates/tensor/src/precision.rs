//! Mixed precision: what products take, and what activations are kept in.

use candle_core::DType;
use phalanx_kernels::Products;

/// What products take and what activations are kept in; see [`crate::Session::precision`].
///
/// As under `torch.autocast`, parameters, their gradients, statistics and losses are f32 at any precision. Products
/// (convolution, linear layers, attention) round both operands to the low type and add in f32; what an op gives to the
/// next, and so what backward keeps, is stored in the low type; a gradient has the type of its value. f64 stays f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32-bit floats throughout.
    #[default]
    F32,
    /// 32-bit floats, whose products GPUs take by tensor cores, from operands with 10 bits after the point. A processor, which
    /// has no such cores, multiplies f32.
    Tf32,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision up to 65504, which gradients need a [`crate::optim::LossScale`] for.
    F16,
}

impl Precision {
    /// What there is to choose from.
    pub const ALL: &'static [Self] = &[Self::F32, Self::Tf32, Self::Bf16, Self::F16];

    /// The type that activations are stored in.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 | Self::Tf32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// What a [`Context`](crate::Context) should multiply: [`Context::with_products`](crate::Context::with_products). Products
    /// of operands that are rounded already lose nothing by it.
    pub fn products(self) -> Products {
        match self {
            Self::F32 | Self::Tf32 | Self::F16 => Products::F32,
            Self::Bf16 => Products::Bf16,
        }
    }

    /// The type that an op stores a result in which it computed from values of type `dtype`: the low type in place of f32.
    pub(crate) fn stored(self, dtype: DType) -> DType {
        if dtype == DType::F32 { self.dtype() } else { dtype }
    }

    /// The type of a product of operands of type `dtype`.
    pub(crate) fn product(self, dtype: DType) -> DType {
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
    type Err = crate::TensorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|precision| precision.to_string() == text);
        let unknown = || crate::TensorError::Argument {
            name: "precision",
            value: format!("{text:?}"),
            expected: "expected f32, tf32, bf16 or f16",
        };
        found.copied().ok_or_else(unknown)
    }
}
