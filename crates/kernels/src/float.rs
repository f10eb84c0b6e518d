//! The element types of the kernels.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// An element type: f32 for training, or f64 for checking gradients.
pub trait Float:
    sealed::Sealed
    + Copy
    + Default
    + Debug
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + Sum
    + crate::context::Scratch
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The most negative finite number.
    const LOWEST: Self;
    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;
    /// Widens.
    fn to_f64(self) -> f64;
    /// √x.
    fn sqrt(self) -> Self;
    /// eˣ within a few units in the last place; for f32 in a form that vectorises.
    fn exp(self) -> Self;
    /// eˣ of a number up to 1; results below 2⁻¹²⁶ may be 0.
    fn exp_up_to_1(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// The larger one; the other one if one is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller one; the other one if one is NaN.
    fn min(self, other: Self) -> Self;
    /// Returns the slice if the elements are f32, for kernels of f32 alone.
    #[doc(hidden)]
    fn singles(values: &[Self]) -> Option<&[f32]>;
    /// Returns the mutable slice if the elements are f32.
    #[doc(hidden)]
    fn singles_mut(values: &mut [Self]) -> Option<&mut [f32]>;
}

impl Float for f32 {
    #[inline(always)]
    fn singles(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }

    #[inline(always)]
    fn singles_mut(values: &mut [Self]) -> Option<&mut [f32]> {
        Some(values)
    }

    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::MIN;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as Self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn exp(self) -> Self {
        crate::math::exp_f32(self)
    }
    #[inline(always)]
    fn exp_up_to_1(self) -> Self {
        crate::math::exp_f32_up_to_1(self)
    }
    #[inline(always)]
    fn erf(self) -> Self {
        crate::math::erf_f32(self)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other || other.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if self < other || other.is_nan() { self } else { other }
    }
}

impl Float for f64 {
    #[inline(always)]
    fn singles(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn singles_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }

    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::MIN;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn exp(self) -> Self {
        self.exp()
    }
    #[inline(always)]
    fn exp_up_to_1(self) -> Self {
        self.exp()
    }
    #[inline(always)]
    fn erf(self) -> Self {
        crate::math::erf_f64(self)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other || other.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if self < other || other.is_nan() { self } else { other }
    }
}
