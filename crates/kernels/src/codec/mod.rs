//! Kernels of gradient codecs: f32 gradients to fewer bytes, and back.
//!
//! All kernels give the same bits on every CPU: sums have a fixed order, multiplications and additions are not fused, and
//! random numbers are functions of a counter. Kernels run on the calling thread, in training a background thread.

mod chunks;
mod integer;
mod lossless;
mod low_rank;
mod momentum;
mod random;
mod rans;
mod select;
mod sign;
mod stochastic;
mod table;
mod thin;

pub use chunks::{ChunkFormat, ChunkKind};
pub use integer::{dequantise_int4, dequantise_int8, int4_len, quantise_int4, quantise_int8, scales_len};
pub use lossless::{compress_lossless, decompress_lossless, lossless_bound};
pub use low_rank::{low_rank_product, orthogonalise};
pub use momentum::accumulate_momentum;
pub use random::{mixed, mixed_with, random_indices, uniform};
pub use select::{clear_indices, gather_indices, scatter_add, top_k};
pub use sign::{sign_decode, sign_encode, sign_len};
pub use stochastic::{dequantise_stochastic, quantise_stochastic};
pub use thin::{Run, ThinMatrix};

use crate::context::Context;
use crate::error::{KernelError, Result};

/// Returns the largest magnitude, 0 without numbers. It is not finite if a number is not.
pub fn largest_magnitude(context: &Context, values: &[f32]) -> f32 {
    context.simd(
        #[inline(always)]
        || largest(values),
    )
}

#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // The bits of magnitudes are ordered as the numbers are, with infinity and NaN at the top.
    let largest = values.iter().fold(0_u32, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    f32::from_bits(largest)
}

fn check_chunk(kernel: &'static str, chunk: usize) -> Result<()> {
    match chunk {
        0 => Err(KernelError::Shape { kernel, problem: "chunks of 0 elements".to_owned() }),
        _ => Ok(()),
    }
}

/// Refuses chunks that begin in the middle of a byte of `in_a_byte` elements.
fn check_bytes(kernel: &'static str, chunk: usize, in_a_byte: usize) -> Result<()> {
    check_chunk(kernel, chunk)?;
    match chunk.is_multiple_of(in_a_byte) {
        true => Ok(()),
        false => {
            let problem = format!("chunks of {chunk} elements are no whole bytes of {in_a_byte}");
            Err(KernelError::Shape { kernel, problem })
        }
    }
}

/// Rounds a number within ±127 to the nearest integer, ties to even, by a sum whose last bit counts ones. Unlike a conversion,
/// which must handle numbers out of range, it vectorises.
#[inline(always)]
fn low_byte(value: f32) -> i8 {
    (value + 12_582_912.0).to_bits() as i8
}

/// Overwrites `out` with a decoded value, or adds it.
#[inline(always)]
fn put(out: &mut f32, value: f32, add: bool) {
    *out = if add { *out + value } else { value };
}
