//! The length of a run, and actions that are due after steps.

use std::ops::Range;

use phalanx_data::Tail;

use phalanx_config::Config;

/// The steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Training images.
    pub images: usize,
    /// Images of a full step, over all ranks.
    pub global_batch: usize,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// The step at which schedules end.
    pub horizon: u64,
    /// The step after which the run ends.
    pub stop: u64,
}

impl Plan {
    /// Plans the training on `images` images, of this weight together (only `train.tokens` needs it); `None` if an epoch has no step.
    pub fn new(config: &Config, images: usize, weight: f64) -> Option<Self> {
        let train = &config.train;
        let batch = train.global_batch.max(1);
        let per_epoch = match config.data.tail {
            Tail::Drop => images / batch,
            Tail::Pad | Tail::Ragged => images.div_ceil(batch),
        } as u64;
        if per_epoch == 0 {
            return None;
        }
        let horizon = match (train.steps, train.tokens) {
            (0, 0) => train.epochs as u64 * per_epoch,
            (0, tokens) if weight > 0.0 => {
                let of_step = weight / images as f64 * batch as f64;
                ((tokens as f64 / of_step).ceil() as u64).max(1)
            }
            (0, _) => return None,
            (steps, _) => steps,
        };
        let stop = match (train.stop_step, train.stop_epoch) {
            (0, 0) => horizon,
            (0, epoch) => epoch as u64 * per_epoch,
            (step, _) => step,
        };
        Some(Self { images, global_batch: batch, steps_per_epoch: per_epoch, horizon, stop })
    }

    /// Returns the steps, counted from 0, of a part of the run, given as fractions from 0 to 1. A part that ends at 1 has no end.
    pub fn steps(&self, [from, to]: [f64; 2]) -> Range<u64> {
        let at = |part: f64| (part * self.horizon as f64).round() as u64;
        at(from)..if to >= 1.0 { u64::MAX } else { at(to) }
    }

    /// Returns the plan of a part with these steps: its horizon is the length of the part.
    #[must_use]
    pub fn of(&self, steps: &Range<u64>) -> Self {
        let end = steps.end.min(self.horizon);
        Self { horizon: end.saturating_sub(steps.start).max(1), ..*self }
    }

    /// Returns the epoch of a step and its index in the epoch, all counted from 0.
    pub fn place(&self, step: u64) -> (usize, u64) {
        let epoch = step / self.steps_per_epoch;
        (usize::try_from(epoch).unwrap_or(usize::MAX), step % self.steps_per_epoch)
    }

    /// Returns a period in steps: `every`, or, if that is 0, `every_epochs` epochs. 0 means only after the last step.
    pub fn period(&self, every: u64, every_epochs: u64) -> u64 {
        if every > 0 { every } else { every_epochs.saturating_mul(self.steps_per_epoch) }
    }

    /// True if an action with the period `every` is due after step `step`, counted from 1. All actions are due after the last step; a
    /// period of 0 means only then.
    pub fn is_due(&self, every: u64, step: u64, last: bool) -> bool {
        last || (every > 0 && step.is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_epochs_and_stops() {
        let mut config = Config::default();
        config.train.global_batch = 32;
        config.train.epochs = 3;
        let plan = |config: &Config| Plan::new(config, 100, 500.0).expect("an epoch has steps");
        assert_eq!((plan(&config).steps_per_epoch, plan(&config).horizon, plan(&config).stop), (3, 9, 9));
        config.data.tail = Tail::Ragged;
        assert_eq!((plan(&config).steps_per_epoch, plan(&config).stop), (4, 12));
        config.train.stop_epoch = 1;
        assert_eq!((plan(&config).horizon, plan(&config).stop), (12, 4));
        config.train.stop_step = 50;
        config.train.steps = 20;
        assert_eq!((plan(&config).horizon, plan(&config).stop), (20, 50));
        assert_eq!(plan(&config).place(9), (2, 1));
        config.data.tail = Tail::Drop;
        assert_eq!(Plan::new(&config, 31, 155.0), None);
        let plan = plan(&config);
        assert_eq!([plan.steps([0.0, 0.33]), plan.steps([0.33, 1.0])], [0..7, 7..u64::MAX]);
        assert_eq!([plan.of(&(0..7)).horizon, plan.of(&(7..u64::MAX)).horizon], [7, 13]);
        assert!(plan.is_due(5, 10, false) && !plan.is_due(5, 9, false) && !plan.is_due(0, 10, false));
        assert!(plan.is_due(0, 10, true));
        // A step of 32 samples has 160 tokens.
        (config.train.steps, config.train.tokens) = (0, 1601);
        assert_eq!(Plan::new(&config, 100, 500.0).expect("an epoch has steps").horizon, 11);
        config.train.tokens = 1;
        assert_eq!(Plan::new(&config, 100, 500.0).expect("an epoch has steps").horizon, 1);
        assert_eq!([plan.period(5, 0), plan.period(0, 2), plan.period(0, 0)], [5, 6, 0]);
    }
}
