//! MixUp and CutMix: samples of a step that are mixed in pairs, with their labels.
//!
//! The pairs are positions 2k and 2k + 1 of the *global* batch, and the mixture is drawn for a step. So the mixed images
//! depend on no number of ranks. A rank whose part of the batch begins or ends within a pair reads the other sample, too.

use crate::error::{DataError, Result};
use crate::rng::{Purpose, below, rng_for};
use crate::transform::Patch;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The name of the array with the label of each sample's partner, u32 `[N]`.
pub const PARTNER_LABELS: &str = "partner_labels";

/// The name of the array with the share of each sample's own label, f32 `[N]`; the rest is the partner's.
pub const LABEL_SHARES: &str = "label_shares";

/// The mixtures of a training. At least one α is above 0; with both, each step has one of them with equal probability.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mixing {
    /// The α of MixUp (Zhang et al. 2018), whose share is drawn from Beta(α, α); 0 = none.
    pub mixup: f64,
    /// The α of CutMix (Yun et al. 2019); 0 = none.
    pub cutmix: f64,
    /// The seed.
    pub seed: u64,
}

/// The mixture of the samples of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixture {
    /// The share of a sample itself, 0 to 1. The rest is its partner's.
    pub share: f32,
    /// The rectangle that comes from the partner; `None` mixes all pixels.
    pub patch: Option<Patch>,
}

impl Mixing {
    /// Checks the settings.
    ///
    /// # Errors
    /// If an α is negative or not finite.
    pub fn validate(&self) -> Result<()> {
        for (name, alpha) in [("mixing.mixup", self.mixup), ("mixing.cutmix", self.cutmix)] {
            if !(alpha.is_finite() && alpha >= 0.0) {
                return Err(DataError::config(name, format!("{alpha} is not a finite number, at least 0")));
            }
        }
        Ok(())
    }

    /// Draws the mixture of a step of images of `height` by `width` pixels; `None` without an α.
    #[must_use]
    pub fn draw(&self, epoch: u64, step: usize, [height, width]: [usize; 2]) -> Option<Mixture> {
        let mut rng = rng_for(self.seed, Purpose::Mix, epoch, step as u64);
        let cuts = match (self.mixup > 0.0, self.cutmix > 0.0) {
            (false, false) => return None,
            (true, true) => below(&mut rng, 2) == 1,
            (_, cuts) => cuts,
        };
        let alpha = if cuts { self.cutmix } else { self.mixup };
        let share = beta(alpha, &mut rng);
        if !cuts {
            return Some(Mixture { share: share as f32, patch: None });
        }
        let half = 0.5 * (1.0 - share).sqrt();
        let side = |rng: &mut ChaCha8Rng, length: usize| {
            let (middle, half) = (below(rng, length), (half * length as f64) as usize);
            (middle.saturating_sub(half), (middle + half).min(length))
        };
        let (left, right) = side(&mut rng, width);
        let (top, bottom) = side(&mut rng, height);
        let area = ((right - left) * (bottom - top)) as f64 / (width * height).max(1) as f64;
        let [left, top, width, height] = [left, top, right - left, bottom - top].map(|pixels| pixels as u32);
        Some(Mixture { share: (1.0 - area) as f32, patch: Some(Patch { left, top, width, height }) })
    }
}

/// Returns the position of a sample's partner in a global batch of `samples`. A last one without a partner is its own.
#[must_use]
pub fn partner(position: usize, samples: usize) -> usize {
    let other = position ^ 1;
    if other < samples { other } else { position }
}

/// Draws a number from Beta(α, α).
fn beta(alpha: f64, rng: &mut ChaCha8Rng) -> f64 {
    let (a, b) = (gamma(alpha, rng), gamma(alpha, rng));
    // Tiny α may give two zeros.
    if a + b > 0.0 { a / (a + b) } else { below(rng, 2) as f64 }
}

/// Draws a number from Gamma(α, 1) (Marsaglia & Tsang 2000).
fn gamma(alpha: f64, rng: &mut ChaCha8Rng) -> f64 {
    if alpha < 1.0 {
        return gamma(alpha + 1.0, rng) * rng.random::<f64>().powf(1.0 / alpha);
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let normal = normal(rng);
        let v = (1.0 + c * normal).powi(3);
        let accepted = 1.0 - rng.random::<f64>();
        if v > 0.0 && accepted.ln() < 0.5 * normal * normal + d * (1.0 - v + v.ln()) {
            return d * v;
        }
    }
}

/// Draws a standard normal number (Box & Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (radius, turn) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_moments_of_a_beta_distribution() {
        for alpha in [0.1, 0.2, 1.0, 4.0] {
            let mixing = Mixing { mixup: alpha, cutmix: 0.0, seed: 3 };
            let shares: Vec<f64> = (0..20_000)
                .map(|step| f64::from(mixing.draw(0, step, [8, 8]).expect("mixes").share))
                .collect();
            let mean = shares.iter().sum::<f64>() / 20_000.0;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / 20_000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!(
                (mean - 0.5).abs() < 0.01 && (variance / expected - 1.0).abs() < 0.04,
                "{alpha}: {variance}"
            );
        }
    }

    #[test]
    fn a_share_is_the_area_outside_of_the_patch() {
        let mixing = Mixing { mixup: 0.0, cutmix: 1.0, seed: 1 };
        let mut cut = 0;
        for step in 0..500 {
            let Mixture { share, patch } = mixing.draw(2, step, [12, 20]).expect("mixes");
            let patch = patch.expect("cuts");
            assert!(patch.left + patch.width <= 20 && patch.top + patch.height <= 12);
            let area = f64::from(patch.width * patch.height) / 240.0;
            assert!((f64::from(share) - (1.0 - area)).abs() < 1e-6);
            cut += usize::from(area > 0.0);
        }
        assert!(cut > 400);
        let both = Mixing { mixup: 0.2, ..mixing };
        let cuts = (0..1000).filter(|step| both.draw(0, *step, [9, 9]).expect("mixes").patch.is_some());
        assert!((440..560).contains(&cuts.count()));
        assert_eq!(Mixing::default().draw(0, 0, [4, 4]), None);
        assert!(Mixing { mixup: -1.0, ..both }.validate().is_err());
    }

    #[test]
    fn partners_are_mutual() {
        for samples in 1..9 {
            for position in 0..samples {
                let other = partner(position, samples);
                assert!(other < samples && partner(other, samples) == position);
                assert!(other != position || (samples % 2 == 1 && position == samples - 1));
            }
        }
    }
}
