//! Counter-based random numbers: every number is a function of *its purpose*, not of earlier draws.
//!
//! A [`Key`] names a stream by seed, purpose, step and rank. Element `i` of the stream is computed directly from `i`.
//! So a shard of a parameter can be initialised without the rest. Ranks draw the noise of their own samples, as a
//! single rank would for the whole batch. A resumed run continues with the same numbers. The generator is ChaCha with
//! 8 rounds (`rand_chacha`), whose counter can be set to any position.

use phalanx_kernels::fnv1a;
use rand::Rng as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// The name of a stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    seed: u64,
    stream: u64,
    step: u64,
    rank: u64,
}

impl Key {
    /// Returns the root key of a run.
    pub fn new(seed: u64) -> Self {
        Self { seed, stream: 0, step: 0, rank: 0 }
    }

    /// Derives the key of one purpose, such as a parameter's name or "dropout".
    pub fn stream(self, purpose: &str) -> Self {
        Self { stream: mix(self.stream ^ fnv1a(purpose.as_bytes())), ..self }
    }

    /// Derives the key of the `index`-th use within a purpose.
    pub fn index(self, index: u64) -> Self {
        Self { stream: mix(self.stream.wrapping_add(index).wrapping_add(1)), ..self }
    }

    /// Derives the key of an optimizer step.
    pub fn step(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// Derives the key of a rank, for numbers that must *differ* between ranks.
    pub fn rank(self, rank: usize) -> Self {
        Self { rank: rank as u64 + 1, ..self }
    }

    /// Seed, step, rank and stream, the start of a back end's generator; [`Key::uniform`] documents the draws.
    #[cfg(feature = "cuda")]
    pub(crate) fn words(self) -> [u64; 4] {
        [self.seed, self.step, self.rank, self.stream]
    }

    /// Returns a number of 64 bits for generators that start from one.
    pub fn hash(self) -> u64 {
        let words = [self.seed, self.step, self.rank, self.stream];
        words.into_iter().fold(0, |hash, word| mix(mix(hash.wrapping_add(GOLDEN)).wrapping_add(word)))
    }

    /// Returns a generator at the 32-bit word `position` of the stream.
    fn at(self, position: u128) -> ChaCha8Rng {
        let mut seed = [0_u8; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&self.step.to_le_bytes());
        seed[16..24].copy_from_slice(&self.rank.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(seed);
        rng.set_stream(self.stream);
        rng.set_word_pos(position);
        rng
    }

    /// Writes elements `start..` of the stream of uniform numbers in [0, 1).
    pub fn uniform(self, start: usize, out: &mut [f64]) {
        let mut rng = self.at(start as u128);
        for value in out {
            *value = f64::from(rng.next_u32()) * (1.0 / 4_294_967_296.0);
        }
    }

    /// Writes elements `start..` of the stream of standard normal numbers.
    ///
    /// Elements 2i and 2i+1 are the two results of one Box-Muller transform, so any range can be drawn alone.
    pub fn normal(self, start: usize, out: &mut [f64]) {
        let mut rng = self.at((start - start % 2) as u128);
        let mut at = 0;
        let mut skip = start % 2 == 1;
        while at < out.len() {
            // In (0, 1], so that the logarithm is finite.
            let u = (f64::from(rng.next_u32()) + 1.0) * (1.0 / 4_294_967_296.0);
            let angle = f64::from(rng.next_u32()) * (std::f64::consts::TAU / 4_294_967_296.0);
            let radius = (-2.0 * u.ln()).sqrt();
            let (sin, cos) = angle.sin_cos();
            if !skip {
                out[at] = radius * cos;
                at += 1;
            }
            skip = false;
            if at < out.len() {
                out[at] = radius * sin;
                at += 1;
            }
        }
    }
}

/// The increment of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64: spreads every input bit over the output.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_can_be_drawn_alone() {
        let key = Key::new(7).stream("weights").step(3);
        let mut whole = vec![0.0; 101];
        for draw in [Key::uniform, Key::normal] {
            draw(key, 0, &mut whole);
            for (start, len) in [(0, 1), (1, 1), (1, 6), (13, 40), (64, 37), (100, 1)] {
                let mut part = vec![0.0; len];
                draw(key, start, &mut part);
                assert_eq!(part, whole[start..start + len], "range {start}+{len}");
            }
        }
    }

    #[test]
    fn every_part_of_the_key_changes_the_stream() {
        let first = |key: Key| {
            let mut out = [0.0];
            key.uniform(0, &mut out);
            out[0].to_bits()
        };
        let key = Key::new(1).stream("a");
        assert_eq!(key.hash(), Key::new(1).stream("a").hash());
        let others = [
            Key::new(2).stream("a"),
            Key::new(1).stream("b"),
            key.step(1),
            key.rank(0),
            key.rank(1),
            key.index(0),
            key.index(1),
        ];
        let mut seen = vec![first(key)];
        for other in others {
            assert!(!seen.contains(&first(other)), "{other:?}");
            assert_ne!(other.hash(), key.hash());
            seen.push(first(other));
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let n = 200_000;
        let mut values = vec![0.0; n];
        let moments = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / n as f64;
            (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64)
        };
        Key::new(0).uniform(0, &mut values);
        let (mean, variance) = moments(&values);
        assert!((mean - 0.5).abs() < 3e-3 && (variance - 1.0 / 12.0).abs() < 1e-3, "{mean} {variance}");
        Key::new(0).normal(0, &mut values);
        let (mean, variance) = moments(&values);
        assert!(mean.abs() < 1e-2 && (variance - 1.0).abs() < 1.5e-2, "{mean} {variance}");
    }
}
