//! QSGD: stochastic rounding to levels of the norm, unbiased.

use super::random::uniforms;
use super::{check_chunk, low_byte, put, scales_len};
use crate::context::Context;
use crate::error::{Result, check_len};

/// Elements quantised at a time.
const BLOCK: usize = 64;

/// Quantises numbers to levels of the norm of their chunk (Alistarh et al. 2017).
///
/// norm = the L2 norm, summed in f64 and rounded to f32; z = |x|/norm·levels in f32; q = ⌊z⌋, plus one if the uniform number
/// of the element is below z − ⌊z⌋, with the sign of x. The uniform numbers come from stream `base` ([`super::uniform`]),
/// counted from the first element.
///
/// # Errors
/// If the lengths do not match, or a chunk has no elements.
pub fn quantise_stochastic(
    context: &Context,
    (values, chunk): (&[f32], usize),
    (levels, base): (u8, u64),
    norms: &mut [f32],
    out: &mut [i8],
) -> Result<()> {
    const KERNEL: &str = "quantise_stochastic";
    check_chunk(KERNEL, chunk)?;
    check_len(KERNEL, "norms", scales_len(values.len(), chunk), norms.len())?;
    check_len(KERNEL, "out", values.len(), out.len())?;
    let levels = f32::from(levels.min(127));
    context.simd(
        #[inline(always)]
        || {
            let chunks = values.chunks(chunk).zip(norms).zip(out.chunks_mut(chunk));
            for (at, ((values, norm), out)) in chunks.enumerate() {
                *norm = norm_of(values);
                let mut first = (at * chunk) as u64;
                let (blocks, tail) = values.as_chunks::<BLOCK>();
                let (out_blocks, out_tail) = out.as_chunks_mut::<BLOCK>();
                for (values, out) in blocks.iter().zip(out_blocks) {
                    *out = levels_of(values, (*norm, levels), (base, first));
                    first += BLOCK as u64;
                }
                let mut last = [0.0; BLOCK];
                last[..tail.len()].copy_from_slice(tail);
                let last = levels_of(&last, (*norm, levels), (base, first));
                out_tail.copy_from_slice(&last[..tail.len()]);
            }
        },
    );
    Ok(())
}

/// Quantises a block with the uniform numbers of a stream from `first` on.
#[inline(always)]
fn levels_of(values: &[f32; BLOCK], (norm, levels): (f32, f32), (base, first): (u64, u64)) -> [i8; BLOCK] {
    let random: [f32; BLOCK] = uniforms(base, first);
    // With a norm of 0 all numbers are 0.
    let norm = if norm == 0.0 { 1.0 } else { norm };
    let mut all = [0; BLOCK];
    for ((out, value), random) in all.iter_mut().zip(values).zip(random) {
        let z = value.abs() / norm * levels;
        let below = z.floor();
        let up = if random < z - below { 1.0 } else { 0.0 };
        let q = below + up;
        // A quotient may be rounded up past the top level.
        let whole = low_byte(if q.is_nan() { 0.0 } else { q.min(127.0) });
        let sign = (value.to_bits().cast_signed() >> 31) as i8;
        *out = (whole ^ sign).wrapping_sub(sign);
    }
    all
}

/// The L2 norm, in lanes of f64 added in a fixed order.
#[inline(always)]
fn norm_of(values: &[f32]) -> f32 {
    let (whole, tail) = values.as_chunks::<8>();
    let mut lanes = [0.0_f64; 8];
    for values in whole {
        for lane in 0..8 {
            let value = f64::from(values[lane]);
            lanes[lane] += value * value;
        }
    }
    let tail: f64 = tail.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    (lanes.iter().sum::<f64>() + tail).sqrt() as f32
}

/// Decodes [`quantise_stochastic`]: writes q·(norm/levels) in f32, or adds it with `add`.
///
/// # Errors
/// If the lengths do not match, or a chunk has no elements.
pub fn dequantise_stochastic(
    context: &Context,
    (norms, quantised): (&[f32], &[i8]),
    (chunk, levels): (usize, u8),
    out: &mut [f32],
    add: bool,
) -> Result<()> {
    const KERNEL: &str = "dequantise_stochastic";
    check_chunk(KERNEL, chunk)?;
    check_len(KERNEL, "norms", scales_len(out.len(), chunk), norms.len())?;
    check_len(KERNEL, "quantised", out.len(), quantised.len())?;
    let levels = f32::from(levels.min(127));
    context.simd(
        #[inline(always)]
        || {
            for ((out, norm), quantised) in out.chunks_mut(chunk).zip(norms).zip(quantised.chunks(chunk)) {
                let level = norm / levels;
                out.iter_mut().zip(quantised).for_each(|(out, q)| put(out, f32::from(*q) * level, add));
            }
        },
    );
    Ok(())
}
