//! Signs with the mean magnitude of every chunk.

use super::{check_bytes, put, scales_len};
use crate::context::Context;
use crate::error::{Result, check_len};

/// The number of bytes of the signs of `len` numbers.
pub fn sign_len(len: usize) -> usize {
    len.div_ceil(8)
}

/// Encodes the signs of numbers and the mean magnitude of every chunk (Karimireddy et al. 2019, by chunks).
///
/// A sign is one bit, 1 below 0, the first in a byte's lowest bit. Magnitudes are summed in f64.
///
/// # Errors
/// If the lengths do not match, or a chunk is no multiple of 8 elements.
pub fn sign_encode(
    context: &Context,
    values: &[f32],
    chunk: usize,
    scales: &mut [f32],
    out: &mut [u8],
) -> Result<()> {
    const KERNEL: &str = "sign_encode";
    check_bytes(KERNEL, chunk, 8)?;
    check_len(KERNEL, "scales", scales_len(values.len(), chunk), scales.len())?;
    check_len(KERNEL, "out", sign_len(values.len()), out.len())?;
    context.simd(
        #[inline(always)]
        || {
            for (values, scale) in values.chunks(chunk).zip(scales) {
                *scale = mean_magnitude(values);
            }
            let (whole, tail) = values.as_chunks::<8>();
            let bit = |value: f32, at: usize| u8::from(value < 0.0) << at;
            for (out, values) in out.iter_mut().zip(whole) {
                *out = (0..8).fold(0, |byte, at| byte | bit(values[at], at));
            }
            if let (false, Some(out)) = (tail.is_empty(), out.last_mut()) {
                *out = tail.iter().enumerate().fold(0, |byte, (at, value)| byte | bit(*value, at));
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn mean_magnitude(values: &[f32]) -> f32 {
    let (whole, tail) = values.as_chunks::<8>();
    let mut lanes = [0.0_f64; 8];
    for values in whole {
        for lane in 0..8 {
            lanes[lane] += f64::from(values[lane].abs());
        }
    }
    let tail: f64 = tail.iter().map(|value| f64::from(value.abs())).sum();
    ((lanes.iter().sum::<f64>() + tail) / values.len().max(1) as f64) as f32
}

/// Decodes [`sign_encode`]: writes ±scale, or adds it with `add`.
///
/// # Errors
/// If the lengths do not match, or a chunk is no multiple of 8 elements.
pub fn sign_decode(
    context: &Context,
    (scales, signs): (&[f32], &[u8]),
    chunk: usize,
    out: &mut [f32],
    add: bool,
) -> Result<()> {
    const KERNEL: &str = "sign_decode";
    check_bytes(KERNEL, chunk, 8)?;
    check_len(KERNEL, "scales", scales_len(out.len(), chunk), scales.len())?;
    check_len(KERNEL, "signs", sign_len(out.len()), signs.len())?;
    context.simd(
        #[inline(always)]
        || {
            for ((out, scale), signs) in out.chunks_mut(chunk).zip(scales).zip(signs.chunks(chunk / 8)) {
                for (out, byte) in out.chunks_mut(8).zip(signs) {
                    for (at, out) in out.iter_mut().enumerate() {
                        // The bit is the sign of the scale.
                        let sign = u32::from(byte >> at & 1) << 31;
                        put(out, f32::from_bits(scale.to_bits() ^ sign), add);
                    }
                }
            }
        },
    );
    Ok(())
}
