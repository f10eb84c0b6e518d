//! Dropout of attention weights (Srivastava et al. 2014), drawn again in backward.

use crate::float::Float;

use super::AttentionShape;

/// The dropout of attention weights.
///
/// A weight is kept by its sample in the global batch, its head, query and key, so the mask depends neither on how
/// samples are divided among ranks nor on the length to which they are padded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDropout {
    /// The key of the random numbers.
    pub key: u64,
    /// The probability that a weight becomes 0, below 1.
    pub p: f64,
    /// The index in the global batch of the first sample.
    pub first_sample: usize,
}

/// The increment of splitmix64 (Steele et al. 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64.
#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl AttentionDropout {
    /// Returns the state of the generator before the first key of a query.
    pub(super) fn row(&self, shape: &AttentionShape, [sample, head, query]: [usize; 3]) -> u64 {
        let head = (self.first_sample + sample) * shape.heads + head;
        mix(mix(self.key.wrapping_add((head as u64 + 1).wrapping_mul(GOLDEN))).wrapping_add(query as u64))
    }

    /// Returns the factor of kept weights.
    pub(super) fn scale<T: Float>(&self) -> T {
        T::from_f64(1.0 / (1.0 - self.p))
    }

    /// Returns the smallest number of 32 bits of a kept weight.
    pub(super) fn threshold(&self) -> u64 {
        (self.p * 4_294_967_296.0).ceil().max(0.0) as u64
    }
}

/// Multiplies the weights of a query for keys `first..` by `scale`, or by 0 if they are dropped.
#[inline(always)]
pub(super) fn drop_weights<T: Float>(weights: &mut [T], row: u64, first: usize, threshold: u64, scale: T) {
    let mut state = row.wrapping_add((first as u64).wrapping_mul(GOLDEN));
    for weight in weights {
        state = state.wrapping_add(GOLDEN);
        let kept = (mix(state) >> 32) >= threshold;
        *weight = if kept { *weight * scale } else { T::ZERO };
    }
}
