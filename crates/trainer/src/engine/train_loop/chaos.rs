//! Ranks that are slow, hang, or hold a wrong bit, on purpose: tools for experiments on one machine.

use std::time::Duration;

use phalanx_collectives::Clock;
use phalanx_tensor::Key;

use super::state::TrainState;
use crate::config::{BitFlip, Config, Stall, StallPlace};
use crate::engine::TrainError;

/// What holds a rank up in every step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Delay {
    /// Besides what the step takes.
    ms: f64,
    /// Times what the step takes; 1 adds nothing.
    times: f64,
    /// How much both vary from step to step, as a part of them.
    jitter: f64,
    key: Key,
}

impl Delay {
    /// That of a rank, if `chaos.delay` names it.
    pub(super) fn of(config: &Config, rank: usize) -> Option<Self> {
        let key = Key::new(config.train.seed).stream("delay").rank(rank);
        let delays = config.chaos.delays().ok()?;
        let of = delays.into_iter().find(|delay| delay.rank == rank)?;
        Some(Self { ms: of.ms, times: of.times, jitter: of.jitter, key })
    }

    /// How long the rank sleeps in a step that has taken so long.
    fn length(&self, step: u64, taken: Duration) -> Duration {
        let mut drawn = [0.0];
        self.key.step(step).uniform(0, &mut drawn);
        let factor = 1.0 + self.jitter * (2.0 * drawn[0] - 1.0);
        let seconds = (self.ms / 1000.0 + (self.times - 1.0) * taken.as_secs_f64()) * factor;
        Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Sleeps at the end of a step, by this clock.
    pub(super) fn hold_up(&self, clock: Clock, step: u64, taken: Duration) {
        clock.sleep(self.length(step, taken));
    }
}

/// What goes wrong on a rank, once each.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Faults {
    flips: Vec<BitFlip>,
    stalls: Vec<Stall>,
}

impl Faults {
    /// Those of a rank.
    pub(super) fn of(config: &Config, rank: usize) -> Self {
        let (mut flips, mut stalls) =
            (config.chaos.flips().unwrap_or_default(), config.chaos.stalls().unwrap_or_default());
        flips.retain(|flip| flip.rank == rank);
        stalls.retain(|stall| stall.rank == rank);
        Self { flips, stalls }
    }

    /// Hangs, if it is to in this step (counted from 1) at this place.
    pub(super) fn stall(&self, place: StallPlace, step: u64) {
        for stall in self.stalls.iter().filter(|stall| (stall.place, stall.step) == (place, step)) {
            tracing::warn!("chaos.stall: hangs for {} ms in step {step}", stall.ms);
            std::thread::sleep(Duration::from_secs_f64(stall.ms / 1000.0));
        }
    }

    /// Flips what is to be flipped after the step that was just taken.
    pub(super) fn flip(&self, state: &TrainState) -> Result<(), TrainError> {
        let mut due = self.flips.iter().filter(|flip| flip.step == state.step);
        due.try_for_each(|flip| state.flip(flip.param.as_deref(), flip.bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_is_named_sleeps_as_long_as_is_said() {
        let mut config = Config::default();
        assert_eq!(Delay::of(&config, 0), None);
        config.chaos.delay = "rank=1,ms=50,jitter=0.2; rank=3,times=3".to_owned();
        assert_eq!(Delay::of(&config, 0), None);
        let (late, slow) = (Delay::of(&config, 1).expect("named"), Delay::of(&config, 3).expect("named"));
        let lengths: Vec<_> =
            (0..100).map(|step| late.length(step, Duration::ZERO).as_secs_f64() * 1e3).collect();
        assert!(lengths.iter().all(|ms| (40.0..=60.0).contains(ms)), "{lengths:?}");
        assert!(lengths.iter().any(|ms| *ms < 45.0) && lengths.iter().any(|ms| *ms > 55.0), "{lengths:?}");
        assert_eq!(slow.length(0, Duration::from_millis(10)), Duration::from_millis(20));
    }
}
