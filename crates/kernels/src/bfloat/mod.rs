//! bf16 numbers: widened, rounded, and laid out in pairs along a sum.
//!
//! A bf16 number is the upper half of an f32: the same range, 8 bits of precision. Processors with `avx512_bf16`
//! multiply and add pairs of them at twice the rate of f32; there products keep operands as pairs along the
//! sum. Elsewhere numbers are widened and multiplied as f32: the storage is halved, the speed is f32's.

mod convert;
pub(crate) mod pairs;

pub use convert::{narrow, widen};

pub(crate) use convert::round_bits;
