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
    /// A line from 1 to `min` at `total` steps, warm-up included.
    Linear {
        /// The last step.
        total: u64,
        /// The fraction left at the end.
        min: f64,
    },
    /// No decay before the step `start`, then a decay to `min` at `total` steps: warmup-stable-decay (Hu et al. 2024).
    Stable {
        /// The first step of the decay.
        start: u64,
        /// The last step.
        total: u64,
        /// The fraction left at the end.
        min: f64,
        /// The curve of the decay.
        curve: Curve,
    },
    /// The inverse square root of the step, from the end of the warm-up on (Vaswani et al. 2017).
    InverseRoot,
    /// A rise to the peak and a longer fall, without another warm-up (Smith & Topin 2019; PyTorch's `OneCycleLR`).
    OneCycle(OneCycle),
    /// A geometric rise to the peak, without a warm-up: a range test, which tries learning rates (Smith 2017).
    Range {
        /// The number of steps; the last has the peak.
        total: u64,
        /// The last learning rate over the first.
        ratio: f64,
    },
}

/// The curve between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// A line.
    Linear,
    /// Half a cosine.
    Cosine,
}

impl Curve {
    /// All curves.
    pub const ALL: &'static [Self] = &[Self::Linear, Self::Cosine];

    /// Returns the value at `part` of the way from `from` to `to`. It is `to` exactly if `part` is 1.
    fn between(self, from: f64, to: f64, part: f64) -> f64 {
        let left = match self {
            Self::Linear => 1.0 - part,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * part).cos()),
        };
        to + (from - to) * left
    }
}

impl std::fmt::Display for Curve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Cosine => "cosine",
        })
    }
}

impl std::str::FromStr for Curve {
    type Err = TensorError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().copied().find(|curve| curve.to_string() == text);
        let (value, expected) = (text.to_owned(), "expected `linear` or `cosine`");
        found.ok_or(TensorError::Argument { name: "curve", value, expected })
    }
}

/// One cycle of the learning rate along half cosines, and of the momentum in the opposite direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycle {
    /// The number of steps; the last has the smallest learning rate.
    pub total: u64,
    /// The part of the steps in which the learning rate rises (`pct_start`).
    pub rise: f64,
    /// The peak over the first learning rate (`div_factor`).
    pub divisor: f64,
    /// The first learning rate over the last (`final_div_factor`).
    pub final_divisor: f64,
    /// The momentum at the peak, and that at both ends; `None` leaves it constant.
    pub momentum: Option<MomentumRange>,
}

/// The smallest and the largest momentum of a cycle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentumRange {
    /// The momentum at the peak of the learning rate (`base_momentum`).
    pub low: f64,
    /// The momentum at both ends (`max_momentum`).
    pub high: f64,
}

impl OneCycle {
    /// Returns the value of step `step` of a quantity with these values at the first step, the peak and the last step.
    fn at(&self, step: u64, [first, peak, last]: [f64; 3]) -> f64 {
        let (step, end) = (step as f64, self.total as f64 - 1.0);
        let top = self.rise * self.total as f64 - 1.0;
        if step < top {
            return Curve::Cosine.between(first, peak, step / top);
        }
        let part = if end > top { ((step - top) / (end - top)).min(1.0) } else { 1.0 };
        Curve::Cosine.between(peak, last, part)
    }

    fn factor(&self, step: u64) -> f64 {
        let first = 1.0 / self.divisor;
        self.at(step, [first, 1.0, first / self.final_divisor])
    }

    fn check(&self) -> std::result::Result<(), (&'static str, f64, &'static str)> {
        let Self { total, rise, divisor, final_divisor, momentum } = *self;
        if total == 0 {
            return Err(("total steps", 0.0, "expected at least 1"));
        }
        if !(0.0..1.0).contains(&rise) {
            return Err(("rise", rise, "expected 0 ≤ rise < 1"));
        }
        for (name, value) in [("divisor", divisor), ("final divisor", final_divisor)] {
            if !(value.is_finite() && value >= 1.0) {
                return Err((name, value, "expected a finite number, at least 1"));
            }
        }
        match momentum {
            Some(MomentumRange { low, high }) if !(0.0 < low && low <= high && high < 1.0) => {
                Err(("momentum", low, "expected 0 < low ≤ high < 1"))
            }
            _ => Ok(()),
        }
    }
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
            Decay::Cosine { total, .. } | Decay::Linear { total, .. } if total <= warmup => {
                return wrong("total steps", total.to_string(), "expected more than the warm-up");
            }
            Decay::Stable { start, total, .. } if start < warmup || total <= start => {
                let steps = format!("{start} to {total}");
                return wrong("steps of the decay", steps, "expected a range after the warm-up");
            }
            Decay::Cosine { min, .. } | Decay::Linear { min, .. } | Decay::Stable { min, .. }
                if !(0.0..=1.0).contains(&min) =>
            {
                return wrong("min", min.to_string(), "expected 0 ≤ min ≤ 1");
            }
            Decay::OneCycle(_) if warmup > 0 => {
                return wrong("warm-up", warmup.to_string(), "expected 0: one cycle has a rise of its own");
            }
            Decay::OneCycle(cycle) => {
                if let Err((name, value, expected)) = cycle.check() {
                    return wrong(name, value.to_string(), expected);
                }
            }
            Decay::Range { .. } if warmup > 0 => {
                return wrong("warm-up", warmup.to_string(), "expected 0: a range test is one rise");
            }
            Decay::Range { total: 0, .. } => {
                return wrong("total steps", "0".into(), "expected at least 1");
            }
            Decay::Range { ratio, .. } if !(ratio.is_finite() && ratio >= 1.0) => {
                return wrong("ratio", ratio.to_string(), "expected a finite number, at least 1");
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
                Curve::Cosine.between(1.0, min, part_of(step, self.warmup, total))
            }
            Decay::Linear { total, min } => {
                Curve::Linear.between(1.0, min, part_of(step, self.warmup, total))
            }
            Decay::Stable { start, total, min, curve } => {
                curve.between(1.0, min, part_of(step, start, total))
            }
            Decay::InverseRoot => (self.warmup.max(1) as f64 / (step + 1) as f64).sqrt(),
            Decay::OneCycle(cycle) => cycle.factor(step),
            Decay::Range { total, ratio } => ratio.powf(part_of(step, 0, (total - 1).max(1)) - 1.0),
        };
        self.base * factor
    }

    /// Returns the momentum of step `step`, if the schedule sets it.
    pub fn momentum(&self, step: u64) -> Option<f64> {
        let Decay::OneCycle(cycle) = self.decay else { return None };
        let MomentumRange { low, high } = cycle.momentum?;
        Some(cycle.at(step, [high, low, high]))
    }
}

/// Returns the part of the steps from `start` to `total` that lie before `step`, at most 1.
fn part_of(step: u64, start: u64, total: u64) -> f64 {
    (step.saturating_sub(start) as f64 / (total - start) as f64).min(1.0)
}

/// Scales a learning rate found at `base_batch` to `batch` by the linear scaling rule (Goyal et al. 2017).
pub fn linear_scaling(lr: f64, batch: usize, base_batch: usize) -> f64 {
    lr * batch as f64 / base_batch.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: OneCycle =
        OneCycle { total: 10, rise: 0.3, divisor: 25.0, final_divisor: 1e4, momentum: None };

    #[test]
    fn schedules_at_known_steps() {
        let cosine = Schedule::new(2.0, 10, Decay::Cosine { total: 110, min: 0.1 }).expect("valid");
        let step = Schedule::new(1.0, 0, Decay::Step { every: 30, gamma: 0.1 }).expect("valid");
        let linear = Schedule::new(2.0, 10, Decay::Linear { total: 110, min: 0.1 }).expect("valid");
        let stable = |curve| {
            let decay = Decay::Stable { start: 60, total: 100, min: 0.2, curve };
            Schedule::new(4.0, 10, decay).expect("valid")
        };
        let range = Schedule::new(1.0, 0, Decay::Range { total: 5, ratio: 1e4 }).expect("valid");
        let (to_line, to_cosine) = (stable(Curve::Linear), stable(Curve::Cosine));
        let cases = [
            (linear, 9, 2.0),
            (linear, 10, 2.0),
            (linear, 60, 1.1),
            (linear, 110, 0.2),
            (linear, 111, 0.2),
            (to_line, 4, 2.0),
            (to_line, 59, 4.0),
            (to_line, 60, 4.0),
            (to_line, 70, 3.2),
            (to_line, 100, 0.8),
            (to_line, 1000, 0.8),
            (to_cosine, 70, 0.8 + 3.2 * 0.5 * (1.0 + std::f64::consts::FRAC_1_SQRT_2)),
            (to_cosine, 100, 0.8),
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
            (Schedule::new(0.5, 4, Decay::InverseRoot).expect("valid"), 3, 0.5),
            (Schedule::new(0.5, 4, Decay::InverseRoot).expect("valid"), 15, 0.25),
            (Schedule::new(0.5, 0, Decay::InverseRoot).expect("valid"), 99, 0.05),
            (range, 0, 1e-4),
            (range, 1, 1e-3),
            (range, 4, 1.0),
            (range, 5, 1.0),
        ];
        for (schedule, at, expected) in cases {
            assert!((schedule.lr(at) - expected).abs() < 1e-12, "{schedule:?} at {at}: {}", schedule.lr(at));
        }
        assert_eq!(linear_scaling(0.1, 1024, 256), 0.4);
    }

    #[test]
    fn ends_are_exact() {
        let end = |base, decay| Schedule::new(base, 0, decay).expect("valid").lr(100);
        assert_eq!(end(0.3, Decay::Linear { total: 100, min: 0.0 }), 0.0);
        assert_eq!(end(0.3, Decay::Cosine { total: 100, min: 0.0 }), 0.0);
        for curve in [Curve::Linear, Curve::Cosine] {
            let decay = Decay::Stable { start: 90, total: 100, min: 0.25, curve };
            assert_eq!(end(0.3, decay), 0.3 * 0.25);
            assert_eq!(Schedule::new(0.3, 0, decay).expect("valid").lr(90), 0.3);
            assert_eq!(curve.to_string().parse::<Curve>().expect("a curve"), curve);
        }
        let cycle = OneCycle { total: 20, rise: 0.25, divisor: 4.0, final_divisor: 8.0, momentum: None };
        let cycle = Schedule::new(0.3, 0, Decay::OneCycle(cycle)).expect("valid");
        assert_eq!(
            [0, 4, 19, 20].map(|at| cycle.lr(at)),
            [0.075, 0.3, 0.3 * (0.25 / 8.0), 0.3 * (0.25 / 8.0)]
        );
        assert_eq!(cycle.momentum(4), None);
    }

    /// Learning rates and momenta of `torch.optim.lr_scheduler.OneCycleLR` of PyTorch 2.15 with `max_lr=0.1`.
    #[test]
    fn one_cycle_is_that_of_pytorch() {
        let momentum = Some(MomentumRange { low: 0.85, high: 0.95 });
        let long = OneCycle { total: 100, rise: 0.25, divisor: 10.0, final_divisor: 100.0, momentum };
        let short = OneCycle { momentum, ..CYCLE };
        for (cycle, step, rate, momentum) in [
            (short, 0, 0.004_000_000_000_000_003_6, 0.95),
            (short, 1, 0.052_000_000_000_000_005, 0.899_999_999_999_999_9),
            (short, 2, 0.1, 0.85),
            (short, 3, 0.095_048_463_201_347_38, 0.854_951_556_604_879),
            (short, 6, 0.038_874_197_806_371_07, 0.911_126_046_697_815_7),
            (short, 9, 4e-7, 0.95),
            (long, 0, 0.009_999_999_999_999_995, 0.95),
            (long, 10, 0.043_353_142_970_386_57, 0.912_940_952_255_126),
            (long, 23, 0.099_615_018_761_821_47, 0.850_427_756_931_309_5),
            (long, 24, 0.1, 0.85),
            (long, 25, 0.099_956_185_363_437_98, 0.850_043_858_495_057),
            (long, 75, 0.023_285_451_590_799_106, 0.926_791_339_748_949_8),
            (long, 99, 0.0001, 0.95),
            (OneCycle { total: 7, rise: 0.0, ..short }, 0, 0.095_048_463_201_347_38, 0.854_951_556_604_879),
            (OneCycle { total: 7, rise: 0.0, ..short }, 6, 4e-7, 0.95),
            (OneCycle { total: 1, ..short }, 0, 4e-7, 0.95),
        ] {
            let schedule = Schedule::new(0.1, 0, Decay::OneCycle(cycle)).expect("valid");
            let found = schedule.momentum(step).expect("set");
            let off = ((schedule.lr(step) - rate).abs(), (found - momentum).abs());
            assert!(off.0 < 1e-15 && off.1 < 1e-15, "{cycle:?} at {step}: {off:?}");
        }
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
            (1.0, 10, Decay::Linear { total: 10, min: 0.0 }),
            (1.0, 0, Decay::Linear { total: 10, min: -0.1 }),
            (1.0, 5, Decay::Stable { start: 4, total: 10, min: 0.0, curve: Curve::Linear }),
            (1.0, 0, Decay::Stable { start: 10, total: 10, min: 0.0, curve: Curve::Linear }),
            (1.0, 1, Decay::Range { total: 10, ratio: 10.0 }),
            (1.0, 0, Decay::Range { total: 0, ratio: 10.0 }),
            (1.0, 0, Decay::Range { total: 10, ratio: 0.5 }),
            (1.0, 1, Decay::OneCycle(CYCLE)),
            (1.0, 0, Decay::OneCycle(OneCycle { total: 0, ..CYCLE })),
            (1.0, 0, Decay::OneCycle(OneCycle { rise: 1.0, ..CYCLE })),
            (1.0, 0, Decay::OneCycle(OneCycle { divisor: 0.5, ..CYCLE })),
            (
                1.0,
                0,
                Decay::OneCycle(OneCycle { momentum: Some(MomentumRange { low: 0.9, high: 0.8 }), ..CYCLE }),
            ),
        ] {
            assert!(Schedule::new(base, warmup, decay).is_err(), "{base} {warmup} {decay:?}");
        }
    }
}
