//! Learning-rate schedules.

use crate::{Result, TensorError};

/// The decay of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// No decay.
    Constant,
    /// A factor of `gamma` every `every` steps.
    Step {
        /// Steps between decays.
        every: u64,
        /// The factor of each decay.
        gamma: f64,
    },
    /// Half a cosine from 1 to `min` at `total` steps (Loshchilov & Hutter 2017), warm-up included.
    Cosine {
        /// The last step.
        total: u64,
        /// The fraction left at the end.
        min: f64,
    },
}

/// A learning rate as a function of the step: linear warm-up, then decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    base: f64,
    warmup: u64,
    decay: Decay,
}

impl Schedule {
    /// Makes a schedule with peak learning rate `base`; step i < `warmup` has (i + 1)/warmup of it.
    ///
    /// # Errors
    /// [`TensorError::Argument`] naming the argument that is out of range.
    pub fn new(base: f64, warmup: u64, decay: Decay) -> Result<Self> {
        let wrong = |name, value: String, expected| Err(TensorError::Argument { name, value, expected });
        if !base.is_finite() || base < 0.0 {
            return wrong("learning rate", base.to_string(), "expected a finite number, at least 0");
        }
        match decay {
            Decay::Step { every: 0, .. } => {
                return wrong("steps between falls", "0".into(), "expected at least 1");
            }
            Decay::Step { gamma, .. } if !(gamma > 0.0 && gamma <= 1.0) => {
                return wrong("gamma", gamma.to_string(), "expected 0 < gamma ≤ 1");
            }
            Decay::Cosine { total, .. } if total <= warmup => {
                return wrong("total steps", total.to_string(), "expected more than the warm-up");
            }
            Decay::Cosine { min, .. } if !(0.0..=1.0).contains(&min) => {
                return wrong("min", min.to_string(), "expected 0 ≤ min ≤ 1");
            }
            _ => {}
        }
        Ok(Self { base, warmup, decay })
    }

    /// Returns the learning rate of step `step`, counted from 0.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.base * (step + 1) as f64 / self.warmup as f64;
        }
        let factor = match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every, gamma } => gamma.powi(i32::try_from(step / every).unwrap_or(i32::MAX)),
            Decay::Cosine { total, min } => {
                let done = ((step - self.warmup) as f64 / (total - self.warmup) as f64).min(1.0);
                min + (1.0 - min) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        };
        self.base * factor
    }
}

/// Scales a learning rate found at `base_batch` to `batch` by the linear scaling rule (Goyal et al. 2017).
pub fn linear_scaling(lr: f64, batch: usize, base_batch: usize) -> f64 {
    lr * batch as f64 / base_batch.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_at_known_steps() {
        let cosine = Schedule::new(2.0, 10, Decay::Cosine { total: 110, min: 0.1 }).expect("valid");
        let step = Schedule::new(1.0, 0, Decay::Step { every: 30, gamma: 0.1 }).expect("valid");
        let cases = [
            (cosine, 0, 0.2),
            (cosine, 9, 2.0),
            (cosine, 10, 2.0),
            (cosine, 60, 1.1),
            (cosine, 110, 0.2),
            (cosine, 500, 0.2),
            (step, 29, 1.0),
            (step, 30, 0.1),
            (step, 89, 0.01),
            (Schedule::new(0.5, 4, Decay::Constant).expect("valid"), 1, 0.25),
            (Schedule::new(0.5, 4, Decay::Constant).expect("valid"), 99, 0.5),
        ];
        for (schedule, at, expected) in cases {
            assert!((schedule.lr(at) - expected).abs() < 1e-12, "{schedule:?} at {at}: {}", schedule.lr(at));
        }
        assert_eq!(linear_scaling(0.1, 1024, 256), 0.4);
    }

    #[test]
    fn impossible_schedules_are_refused() {
        for (base, warmup, decay) in [
            (f64::NAN, 0, Decay::Constant),
            (-1.0, 0, Decay::Constant),
            (1.0, 0, Decay::Step { every: 0, gamma: 0.1 }),
            (1.0, 0, Decay::Step { every: 5, gamma: 0.0 }),
            (1.0, 10, Decay::Cosine { total: 10, min: 0.0 }),
            (1.0, 0, Decay::Cosine { total: 10, min: 1.5 }),
        ] {
            assert!(Schedule::new(base, warmup, decay).is_err(), "{base} {warmup} {decay:?}");
        }
    }
}
