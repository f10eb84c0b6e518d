//! Kernels of gradient codecs: gradients of f32 as fewer bytes, and back.
//!
//! Everything here gives the same bits on every processor: sums have a fixed order, nothing is contracted, and random numbers are
//! functions of a counter. Kernels run on the thread that calls them, which in training is one beside the thread that trains.

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

mod chunks;

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

/// The largest magnitude of some numbers, 0 of none; not finite if one of them is not.
pub fn largest_magnitude(context: &Context, values: &[f32]) -> f32 {
    context.simd(
        #[inline(always)]
        || largest(values),
    )
}

#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // As integers the bits of magnitudes are ordered as the numbers are, and those of infinity and NaN are above.
    let largest = values.iter().fold(0_u32, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    f32::from_bits(largest)
}

fn check_chunk(kernel: &'static str, chunk: usize) -> Result<()> {
    match chunk {
        0 => Err(KernelError::Shape { kernel, problem: "chunks of 0 elements".to_owned() }),
        _ => Ok(()),
    }
}

/// Refuses chunks that begin in the middle of a byte, of which so many elements are in one.
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

/// A number within ±127 rounded to the nearest integer, halves to the even one: a sum whose last bit counts ones. Unlike a conversion,
/// which has to look at what does not fit, it becomes vectors.
#[inline(always)]
fn low_byte(value: f32) -> i8 {
    (value + 12_582_912.0).to_bits() as i8
}

/// Takes what is decoded: it replaces what is there, or is added to it.
#[inline(always)]
fn put(out: &mut f32, value: f32, add: bool) {
    *out = if add { *out + value } else { value };
}
