//! The spacing of timesteps, and noise levels between them.

use crate::diffusion::schedule::NoiseSchedule;
use crate::names::named;

/// The spacing of a sampler's timesteps over a schedule (Lin et al. 2024, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// A constant stride from the first on; the last is not included.
    Leading,
    /// Evenly, including the first and the last.
    Linspace,
    /// A constant stride from the last back, for schedules that end in pure noise.
    Trailing,
}

impl Spacing {
    /// All spacings.
    pub const ALL: &'static [Self] = &[Self::Leading, Self::Linspace, Self::Trailing];

    /// Returns `steps` timesteps of `all`, the largest first; leading ones plus `offset`. `one_more` computes one more
    /// and leaves the smallest out.
    pub(super) fn timesteps(self, all: usize, steps: usize, offset: usize, one_more: bool) -> Vec<f64> {
        let parts = steps + usize::from(one_more);
        match self {
            Self::Leading => {
                let stride = all / parts;
                (0..parts).rev().take(steps).map(|i| (i * stride + offset).min(all - 1) as f64).collect()
            }
            Self::Linspace => {
                let last = (all - 1) as f64;
                let between = (parts - 1).max(1) as f64;
                (0..parts).rev().take(steps).map(|i| last * i as f64 / between).collect()
            }
            Self::Trailing => {
                let stride = all as f64 / steps as f64;
                (0..steps).map(|i| (all as f64 - i as f64 * stride).round_ties_even() - 1.0).collect()
            }
        }
    }
}

named! { Spacing { Leading = "leading", Linspace = "linspace", Trailing = "trailing" } }

/// Returns the noise levels σ = √((1 − ā)/ā) of every timestep. An ā of 0 counts as 2⁻²⁴.
pub(super) fn levels(schedule: &NoiseSchedule) -> Vec<f64> {
    let smallest = (-24_f64).exp2();
    let level = |alpha: &f64| {
        let alpha = if *alpha == 0.0 { smallest } else { *alpha };
        ((1.0 - alpha) / alpha).sqrt()
    };
    schedule.alphas_cumprod().iter().map(level).collect()
}

/// Interpolates the noise level at a timestep between two.
pub(super) fn level_at(levels: &[f64], timestep: f64) -> f64 {
    let below = (timestep.floor().max(0.0) as usize).min(levels.len() - 1);
    let above = (below + 1).min(levels.len() - 1);
    let part = timestep - below as f64;
    levels[below] + (levels[above] - levels[below]) * part
}

/// Returns `steps` levels from `largest` to `smallest`, evenly spread in their seventh roots (Karras et al. 2022).
pub(super) fn karras(largest: f64, smallest: f64, steps: usize) -> Vec<f64> {
    const RHO: f64 = 7.0;
    let (first, last) = (largest.powf(1.0 / RHO), smallest.powf(1.0 / RHO));
    let part = |i: usize| i as f64 / (steps - 1).max(1) as f64;
    (0..steps).map(|i| (first + part(i) * (last - first)).powf(RHO)).collect()
}

/// Returns the timestep of a noise level, interpolated between the two nearest in the logarithm.
pub(super) fn timestep_of(levels: &[f64], level: f64) -> f64 {
    let log = level.max(1e-10).ln();
    let below = levels.iter().rposition(|known| known.ln() <= log).unwrap_or(0).min(levels.len() - 2);
    let (low, high) = (levels[below].ln(), levels[below + 1].ln());
    let part = ((low - log) / (low - high)).clamp(0.0, 1.0);
    below as f64 + part
}
