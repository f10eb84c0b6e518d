//! The element types of queries, keys and values.

use half::{bf16, f16};
use pulp::Arch;

use crate::float::Float;
use crate::half::Half;

/// An element type of attention's operands and results. Arithmetic on numbers of 16 bits is in f32, and each result is rounded once.
pub trait AttentionElement: Copy + Default + Send + Sync + 'static {
    /// The type of the arithmetic, and of the logarithms that forward saves.
    type Float: Float;
    /// Returns the slice if this type is that of the arithmetic.
    #[doc(hidden)]
    fn floats(values: &[Self]) -> Option<&[Self::Float]>;
    /// Widens as many elements as `to` has.
    #[doc(hidden)]
    fn read(arch: Arch, from: &[Self], to: &mut [Self::Float]);
    /// Rounds as many elements as `to` has.
    #[doc(hidden)]
    fn write(arch: Arch, from: &[Self::Float], to: &mut [Self]);
}

macro_rules! as_it_is {
    ($float:ty) => {
        impl AttentionElement for $float {
            type Float = Self;

            fn floats(values: &[Self]) -> Option<&[Self]> {
                Some(values)
            }

            fn read(_: Arch, from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(&from[..to.len()]);
            }

            fn write(_: Arch, from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(&from[..to.len()]);
            }
        }
    };
}
as_it_is!(f32);
as_it_is!(f64);

macro_rules! widened {
    ($half:ty) => {
        impl AttentionElement for $half {
            type Float = f32;

            fn floats(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn read(arch: Arch, from: &[Self], to: &mut [f32]) {
                Self::widen_slice(arch, &from[..to.len()], to);
            }

            fn write(arch: Arch, from: &[f32], to: &mut [Self]) {
                Self::round_slice(arch, &from[..to.len()], to);
            }
        }
    };
}
widened!(bf16);
widened!(f16);
