//! Element types and reductions.

use half::{bf16, f16};

use crate::error::{CommError, Result};

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit float of IEEE 754.
    F16,
    /// 16-bit float with the exponent of f32.
    BF16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// Byte.
    U8,
}

impl DType {
    /// All types. The position is the code on the wire.
    pub(crate) const ALL: [Self; 7] =
        [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I32, Self::I64, Self::U8];

    /// Returns the bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 => 1,
        }
    }

    /// Returns the name in Rust.
    pub fn name(self) -> &'static str {
        ["f32", "f64", "f16", "bf16", "i32", "i64", "u8"][self as usize]
    }
}

/// Runs the same code with the type of a [`DType`].
macro_rules! on_dtype {
    ($dtype:expr, $t:ident => $run:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $run
            }
            $crate::DType::F64 => {
                type $t = f64;
                $run
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $run
            }
            $crate::DType::BF16 => {
                type $t = half::bf16;
                $run
            }
            $crate::DType::I32 => {
                type $t = i32;
                $run
            }
            $crate::DType::I64 => {
                type $t = i64;
                $run
            }
            $crate::DType::U8 => {
                type $t = u8;
                $run
            }
        }
    };
}
pub(crate) use on_dtype;

mod sealed {
    pub trait Sealed {}
}

/// An element type of buffers.
pub trait Element: sealed::Sealed + bytemuck::Pod + PartialOrd + Send + Sync + 'static {
    /// Its name on the wire.
    const DTYPE: DType;
    #[doc(hidden)]
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
    #[doc(hidden)]
    fn divide(self, by: usize) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $a:ident $b:ident, $sum:expr, $product:expr, $divide:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn combine(op: ReduceOp, $a: Self, $b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => $sum,
                    ReduceOp::Product => $product,
                    ReduceOp::Min => {
                        if $b < $a {
                            $b
                        } else {
                            $a
                        }
                    }
                    ReduceOp::Max => {
                        if $b > $a {
                            $b
                        } else {
                            $a
                        }
                    }
                }
            }
            #[inline(always)]
            fn divide(self, by: usize) -> Self {
                #[allow(clippy::redundant_closure_call, reason = "the macro's parameter is a closure")]
                ($divide)(self, by)
            }
        }
    };
}

element!(f32, F32, a b, a + b, a * b, |v: f32, n: usize| v / n as f32);
element!(f64, F64, a b, a + b, a * b, |v: f64, n: usize| v / n as f64);
// Sums of 16-bit floats are rounded at each addition, through f32.
element!(f16, F16, a b, f16::from_f32(a.to_f32() + b.to_f32()), f16::from_f32(a.to_f32() * b.to_f32()),
    |v: f16, n: usize| f16::from_f32(v.to_f32() / n as f32));
element!(bf16, BF16, a b, bf16::from_f32(a.to_f32() + b.to_f32()), bf16::from_f32(a.to_f32() * b.to_f32()),
    |v: bf16, n: usize| bf16::from_f32(v.to_f32() / n as f32));
element!(i32, I32, a b, a.wrapping_add(b), a.wrapping_mul(b), |v: i32, _| v);
element!(i64, I64, a b, a.wrapping_add(b), a.wrapping_mul(b), |v: i64, _| v);
element!(u8, U8, a b, a.wrapping_add(b), a.wrapping_mul(b), |v: u8, _| v);

/// The reduction of elements of different ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The sum divided by the world size; floats only.
    Mean,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The product; integers wrap.
    Product,
}

impl ReduceOp {
    /// All reductions. The position is the code on the wire.
    pub(crate) const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// Returns the name in messages.
    pub fn name(self) -> &'static str {
        ["sum", "mean", "min", "max", "product"][self as usize]
    }

    /// Returns an error if the reduction is not defined for the type.
    pub(crate) fn check(self, dtype: DType) -> Result<()> {
        let integer = matches!(dtype, DType::I32 | DType::I64 | DType::U8);
        if self == Self::Mean && integer {
            return Err(CommError::Unsupported { operation: "mean", dtype: dtype.name() });
        }
        Ok(())
    }
}
