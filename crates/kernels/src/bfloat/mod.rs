//! bf16 numbers: conversions, and pairs along a sum.
//!
//! A bf16 number is the upper half of an f32: the same range, 8 bits of precision. CPUs with `avx512_bf16` multiply and
//! add pairs of them at twice the rate of f32. There products store operands as pairs along the sum. Elsewhere numbers
//! are widened and multiplied as f32, which halves the memory but not the time.

mod convert;
pub(crate) mod pairs;

pub use convert::{narrow, widen};

pub(crate) use convert::{round_bits, widen_bits};
