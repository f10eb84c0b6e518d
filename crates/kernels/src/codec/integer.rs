//! Integers of 8 and 4 bits with a scale for every chunk.

use super::{check_bytes, check_chunk, largest, low_byte, put};
use crate::context::Context;
use crate::error::{Result, check_len};

/// The number of scales of `len` elements in chunks of `chunk`.
pub fn scales_len(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk.max(1))
}

/// The number of bytes of `len` 4-bit integers.
pub fn int4_len(len: usize) -> usize {
    len.div_ceil(2)
}

/// Rounds x/scale to the nearest integer, ties to even, within ±`top`.
#[inline(always)]
fn rounded(value: f32, scale: f32, top: f32) -> i8 {
    let q = value / scale;
    // The scale is 0 if all numbers are too small for one; ∞/∞ occurs in chunks that are not finite.
    low_byte(if scale == 0.0 || q.is_nan() { 0.0 } else { q.clamp(-top, top) })
}

/// Quantises numbers to 8 bits, chunk by chunk.
///
/// scale = max|x|/127 in f32, q = x/scale rounded half to even, within ±127. The last chunk may be shorter. A chunk that is
/// not finite has a scale that is not finite, so it decodes to nothing finite.
///
/// # Errors
/// If the lengths do not match, or a chunk has no elements.
pub fn quantise_int8(
    context: &Context,
    values: &[f32],
    chunk: usize,
    scales: &mut [f32],
    out: &mut [i8],
) -> Result<()> {
    const KERNEL: &str = "quantise_int8";
    check_chunk(KERNEL, chunk)?;
    check_len(KERNEL, "scales", scales_len(values.len(), chunk), scales.len())?;
    check_len(KERNEL, "out", values.len(), out.len())?;
    context.simd(
        #[inline(always)]
        || {
            for ((values, scale), out) in values.chunks(chunk).zip(scales).zip(out.chunks_mut(chunk)) {
                *scale = largest(values) / 127.0;
                out.iter_mut().zip(values).for_each(|(out, value)| *out = rounded(*value, *scale, 127.0));
            }
        },
    );
    Ok(())
}

/// Decodes [`quantise_int8`]: writes q·scale in f32, or adds it with `add`.
///
/// # Errors
/// If the lengths do not match, or a chunk has no elements.
pub fn dequantise_int8(
    context: &Context,
    (scales, quantised): (&[f32], &[i8]),
    chunk: usize,
    out: &mut [f32],
    add: bool,
) -> Result<()> {
    const KERNEL: &str = "dequantise_int8";
    check_chunk(KERNEL, chunk)?;
    check_len(KERNEL, "scales", scales_len(out.len(), chunk), scales.len())?;
    check_len(KERNEL, "quantised", out.len(), quantised.len())?;
    context.simd(
        #[inline(always)]
        || {
            for ((out, scale), quantised) in out.chunks_mut(chunk).zip(scales).zip(quantised.chunks(chunk)) {
                out.iter_mut().zip(quantised).for_each(|(out, q)| put(out, f32::from(*q) * scale, add));
            }
        },
    );
    Ok(())
}

/// Quantises numbers to 4 bits, chunk by chunk; two in a byte, the first in the lower half.
///
/// scale = max|x|/7 in f32, q = x/scale rounded half to even, within ±7. The last chunk may be shorter.
///
/// # Errors
/// If the lengths do not match, or a chunk has an odd number of elements or none.
pub fn quantise_int4(
    context: &Context,
    values: &[f32],
    chunk: usize,
    scales: &mut [f32],
    out: &mut [u8],
) -> Result<()> {
    const KERNEL: &str = "quantise_int4";
    check_bytes(KERNEL, chunk, 2)?;
    check_len(KERNEL, "scales", scales_len(values.len(), chunk), scales.len())?;
    check_len(KERNEL, "out", int4_len(values.len()), out.len())?;
    context.simd(
        #[inline(always)]
        || {
            for ((values, scale), out) in values.chunks(chunk).zip(scales).zip(out.chunks_mut(chunk / 2)) {
                *scale = largest(values) / 7.0;
                let (pairs, last) = values.as_chunks::<2>();
                for (out, [low, high]) in out.iter_mut().zip(pairs) {
                    *out = nibble(*low, *scale) | nibble(*high, *scale) << 4;
                }
                if let (Some(value), Some(out)) = (last.first(), out.last_mut()) {
                    *out = nibble(*value, *scale);
                }
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn nibble(value: f32, scale: f32) -> u8 {
    rounded(value, scale, 7.0).cast_unsigned() & 0xf
}

/// Decodes [`quantise_int4`]: writes q·scale in f32, or adds it with `add`.
///
/// # Errors
/// If the lengths do not match, or a chunk has an odd number of elements or none.
pub fn dequantise_int4(
    context: &Context,
    (scales, quantised): (&[f32], &[u8]),
    chunk: usize,
    out: &mut [f32],
    add: bool,
) -> Result<()> {
    const KERNEL: &str = "dequantise_int4";
    check_bytes(KERNEL, chunk, 2)?;
    check_len(KERNEL, "scales", scales_len(out.len(), chunk), scales.len())?;
    check_len(KERNEL, "quantised", int4_len(out.len()), quantised.len())?;
    context.simd(
        #[inline(always)]
        || {
            let chunks = out.chunks_mut(chunk).zip(scales).zip(quantised.chunks(chunk / 2));
            for ((out, scale), quantised) in chunks {
                for (out, byte) in out.chunks_mut(2).zip(quantised) {
                    // Shifts of signed numbers extend the sign.
                    let halves = [byte.cast_signed() << 4 >> 4, byte.cast_signed() >> 4];
                    out.iter_mut().zip(halves).for_each(|(out, q)| put(out, f32::from(q) * scale, add));
                }
            }
        },
    );
    Ok(())
}
