//! QSGD: quantised to whole levels at random, so that the mean is right.

use super::random::uniform;
use super::{check_chunk, put, scales_len};
use crate::context::Context;
use crate::error::{Result, check_len};

/// Every chunk's numbers as whole numbers of levels of its norm (Alistarh et al. 2017): norm = the L2 norm, summed in f64 and
/// rounded to f32; z = |x|/norm·levels in f32; q = ⌊z⌋, and one more if the uniform number of the element is below z − ⌊z⌋; with
/// the sign of x. The uniform numbers are those of stream `base` ([`super::uniform`]), counted from the first element.
///
/// # Errors
/// If the lengths do not go together, or a chunk has no elements.
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
                let first = (at * chunk) as u64;
                for (offset, (out, value)) in out.iter_mut().zip(values).enumerate() {
                    let z = if *norm == 0.0 { 0.0 } else { value.abs() / *norm * levels };
                    let below = z.floor();
                    let up = uniform(base, first + offset as u64) < z - below;
                    let q = (below + f32::from(u8::from(up))) as i8;
                    *out = if value.is_sign_negative() { -q } else { q };
                }
            }
        },
    );
    Ok(())
}

/// The L2 norm, in lanes of f64 that are added in a fixed order.
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

/// q·(norm/levels) in f32: what [`quantise_stochastic`] has made of numbers, or, with `add`, what is there and that.
///
/// # Errors
/// If the lengths do not go together, or a chunk has no elements.
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
