//! Conversions between f32 and bf16.

use half::bf16;

use crate::context::Context;
use crate::error::{Result, check_len};

/// Returns the bits of the nearest bf16 number, ties to even. NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    // Wraps for some NaNs, which get `nan` instead.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // The sum would carry a NaN to infinity or zero. A quiet one keeps its sign and upper bits.
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// Returns the number of the bits of a bf16 number.
#[inline(always)]
pub(crate) fn widen_bits(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds every number to bf16, ties to even.
///
/// # Errors
/// If the lengths differ.
pub fn narrow(context: &Context, from: &[f32], to: &mut [bf16]) -> Result<()> {
    check_len("narrow", "to", from.len(), to.len())?;
    let piece = context.piece(from.len(), 1);
    context.run_chunks(to, piece, |task, to| {
        let from = &from[task * piece..][..to.len()];
        context.simd(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = bf16::from_bits(round_bits(*from));
                }
            },
        );
    });
    Ok(())
}

/// Widens every number to f32, exactly.
///
/// # Errors
/// If the lengths differ.
pub fn widen(context: &Context, from: &[bf16], to: &mut [f32]) -> Result<()> {
    check_len("widen", "to", from.len(), to.len())?;
    let piece = context.piece(from.len(), 1);
    context.run_chunks(to, piece, |task, to| {
        let from = &from[task * piece..][..to.len()];
        context.simd(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = widen_bits(from.to_bits());
                }
            },
        );
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let special = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45];
        let drawn = (0..100_000_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)));
        for value in special.into_iter().chain(drawn) {
            let (ours, theirs) = (round_bits(value), bf16::from_f32(value).to_bits());
            if value.is_nan() {
                assert!(bf16::from_bits(ours).is_nan());
            } else {
                assert_eq!(ours, theirs, "{value:e}");
            }
        }
    }
}
