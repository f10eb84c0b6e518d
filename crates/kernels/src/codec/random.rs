//! Random numbers as functions of a counter, and random indices.

/// The increment of splitmix64's counter.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns number `index` of stream `base` by splitmix64 (Steele et al. 2014), with 24 bits, in [0, 1).
#[inline(always)]
pub fn uniform(base: u64, index: u64) -> f32 {
    // Below 2²⁴, so exact.
    (bits(base, index) >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// Returns numbers `first`, `first + 1`, … of [`uniform`] by loops that vectorise.
#[inline(always)]
pub(super) fn uniforms<const N: usize>(base: u64, first: u64) -> [f32; N] {
    let start = base.wrapping_add(first.wrapping_add(1).wrapping_mul(STEP));
    let mut all = [0.0; N];
    for (at, one) in all.iter_mut().enumerate() {
        let bits = scrambled(start.wrapping_add((at as u64).wrapping_mul(STEP)));
        // A signed 32-bit number, which CPUs convert in vectors.
        *one = (bits >> 40) as i32 as f32 * (1.0 / 16_777_216.0);
    }
    all
}

#[inline(always)]
fn bits(base: u64, index: u64) -> u64 {
    scrambled(base.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// The output function of splitmix64.
#[inline(always)]
fn scrambled(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes words to the base of an independent stream.
///
/// Words are hashed in order: one word more than `mixed(words)` is `mixed_with(mixed(words), word)`.
pub fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0x5851_f42d_4c95_7f2d, |state, word| mixed_with(state, *word))
}

/// Continues [`mixed`] by one word.
pub fn mixed_with(state: u64, word: u64) -> u64 {
    scrambled((state ^ word).wrapping_add(STEP))
}

/// Returns `k` random indices below `len`, rising.
///
/// The indices are divided into `k` runs of nearly equal length, and stream `base` selects one of each. An index is selected
/// with probability `k/len`, up to the rounding of the lengths, in time that does not depend on `len`.
pub fn random_indices(base: u64, len: usize, k: usize) -> Vec<u32> {
    let k = k.min(len);
    let cut = |run: usize| (run as u128 * len as u128 / k.max(1) as u128) as usize;
    (0..k)
        .map(|run| {
            let (start, end) = (cut(run), cut(run + 1));
            let offset = (u128::from(bits(base, run as u64)) * (end - start) as u128) >> 64;
            (start + offset as usize) as u32
        })
        .collect()
}
