//! Conversions of slices to and from 16-bit storage types, and rounding in place.
//!
//! Every conversion to 16 bits rounds to nearest, ties to even, so that results have the same bits on any CPU.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use pulp::Arch;

use crate::bfloat::{round_bits, widen_bits};
use crate::context::Context;
use crate::error::{Result, check_len};

mod sealed {
    pub trait Sealed {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// A storage type of mixed-precision training: bf16 or f16.
pub trait Half: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Widens the elements that both slices have, exactly, on this thread.
    #[doc(hidden)]
    fn widen_slice(arch: Arch, from: &[Self], to: &mut [f32]);
    /// Rounds the elements that both slices have, on this thread.
    #[doc(hidden)]
    fn round_slice(arch: Arch, from: &[f32], to: &mut [Self]);
    /// Rounds numbers that stay f32, on this thread.
    #[doc(hidden)]
    fn round_in_place(arch: Arch, values: &mut [f32]);
}

impl Half for bf16 {
    fn widen_slice(arch: Arch, from: &[Self], to: &mut [f32]) {
        arch.dispatch(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = widen_bits(from.to_bits());
                }
            },
        );
    }

    fn round_slice(arch: Arch, from: &[f32], to: &mut [Self]) {
        arch.dispatch(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = Self::from_bits(round_bits(*from));
                }
            },
        );
    }

    fn round_in_place(arch: Arch, values: &mut [f32]) {
        arch.dispatch(
            #[inline(always)]
            || {
                for value in values {
                    *value = widen_bits(round_bits(*value));
                }
            },
        );
    }
}

/// Numbers converted at a time through a buffer, which stays in the first-level cache.
const BLOCK: usize = 1024;

impl Half for f16 {
    fn widen_slice(_: Arch, from: &[Self], to: &mut [f32]) {
        let count = from.len().min(to.len());
        from[..count].convert_to_f32_slice(&mut to[..count]);
    }

    fn round_slice(_: Arch, from: &[f32], to: &mut [Self]) {
        let count = from.len().min(to.len());
        to[..count].convert_from_f32_slice(&from[..count]);
    }

    fn round_in_place(_: Arch, values: &mut [f32]) {
        let mut block = [Self::ZERO; BLOCK];
        for values in values.chunks_mut(BLOCK) {
            let block = &mut block[..values.len()];
            block.convert_from_f32_slice(values);
            block.convert_to_f32_slice(values);
        }
    }
}

/// Widens every number to f32, exactly.
///
/// # Errors
/// If the lengths differ.
pub fn widen_half<L: Half>(context: &Context, from: &[L], to: &mut [f32]) -> Result<()> {
    check_len("widen", "to", from.len(), to.len())?;
    let (arch, piece) = (context.arch(), context.piece(from.len(), 1));
    context.run_chunks(to, piece, |task, to| L::widen_slice(arch, &from[task * piece..], to));
    Ok(())
}

/// Rounds every number to nearest, ties to even; beyond the type's range to infinity.
///
/// # Errors
/// If the lengths differ.
pub fn narrow_half<L: Half>(context: &Context, from: &[f32], to: &mut [L]) -> Result<()> {
    check_len("narrow", "to", from.len(), to.len())?;
    let (arch, piece) = (context.arch(), context.piece(from.len(), 1));
    context.run_chunks(to, piece, |task, to| L::round_slice(arch, &from[task * piece..], to));
    Ok(())
}

/// Writes numbers rounded to the precision of `L`, such as the operands of a product in f32.
///
/// # Errors
/// If the lengths differ.
pub fn round_half_to<L: Half>(context: &Context, from: &[f32], to: &mut [f32]) -> Result<()> {
    check_len("round", "to", from.len(), to.len())?;
    let (arch, piece) = (context.arch(), context.piece(from.len(), 1));
    context.run_chunks(to, piece, |task, to| {
        // Small blocks are still in the cache when they are rounded.
        for (to, from) in to.chunks_mut(BLOCK).zip(from[task * piece..].chunks(BLOCK)) {
            to.copy_from_slice(&from[..to.len()]);
            L::round_in_place(arch, to);
        }
    });
    Ok(())
}

/// Rounds every number to the precision of `L` in place, such as the operands of a product in f32.
pub fn round_half<L: Half>(context: &Context, values: &mut [f32]) {
    let (arch, piece) = (context.arch(), context.piece(values.len(), 1));
    context.run_chunks(values, piece, |_, values| L::round_in_place(arch, values));
}

/// Computes `to += from` in f32 and rounds each sum once.
///
/// # Errors
/// If the lengths differ.
pub fn add_half<L: Half>(context: &Context, from: &[L], to: &mut [L]) -> Result<()> {
    check_len("add", "to", from.len(), to.len())?;
    let (arch, piece) = (context.arch(), context.piece(from.len(), 1));
    context.run_chunks(to, piece, |task, to| {
        let (mut sums, mut addends) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (to, from) in to.chunks_mut(BLOCK).zip(from[task * piece..].chunks(BLOCK)) {
            let (sums, addends) = (&mut sums[..to.len()], &mut addends[..to.len()]);
            L::widen_slice(arch, to, sums);
            L::widen_slice(arch, from, addends);
            sums.iter_mut().zip(&*addends).for_each(|(sum, addend)| *sum += *addend);
            L::round_slice(arch, sums, to);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    fn values() -> Vec<f32> {
        let special =
            [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 65504.0, 65519.9, 65520.0, 6e-8];
        let drawn = (0..50_001_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)));
        let usual = (0..50_001_u32).map(|i| (i as f32 - 25_000.0) * 1.234_567e-3);
        special.into_iter().chain(drawn).chain(usual).filter(|value| !value.is_nan()).collect()
    }

    fn check<L: Half + PartialEq + std::fmt::Debug>(one: impl Fn(f32) -> L, wide: impl Fn(L) -> f32) {
        let values = values();
        let expected: Vec<L> = values.iter().map(|value| one(*value)).collect();
        for level in Level::ALL {
            let Ok(context) = Context::with_level(2, *level) else { continue };
            let mut low = vec![L::default(); values.len()];
            narrow_half(&context, &values, &mut low).expect("as long");
            assert_eq!(low, expected, "{level}");
            let mut back = vec![0.0; values.len()];
            widen_half(&context, &low, &mut back).expect("as long");
            assert!(back.iter().zip(&low).all(|(back, low)| *back == wide(*low)), "{level}");
            let mut rounded = values.clone();
            round_half::<L>(&context, &mut rounded);
            assert_eq!(rounded, back, "{level}");
            let mut sums = low.clone();
            let addends: Vec<L> = low.iter().rev().copied().collect();
            add_half(&context, &addends, &mut sums).expect("as long");
            for ((sum, a), b) in sums.iter().zip(&low).zip(&addends) {
                let exact = wide(*a) + wide(*b);
                assert!(*sum == one(exact) || exact.is_nan(), "{level}");
            }
        }
        let context = Context::new(1);
        let error = narrow_half::<L>(&context, &values, &mut []).expect_err("another length").to_string();
        assert!(error.contains("narrow"), "{error}");
    }

    #[test]
    fn conversions_are_those_of_single_numbers() {
        check(bf16::from_f32, bf16::to_f32);
        check(f16::from_f32, f16::to_f32);
    }
}
