//! Faults on purpose: ranks that are slow, hang, or hold a wrong bit. For experiments on one machine (`[chaos]`).

use std::time::Duration;

use phalanx_collectives::Clock;
use phalanx_tensor::Key;

use super::state::TrainState;
use crate::engine::TrainError;
use phalanx_config::{BitFlip, Config, Stall, StallPlace};

/// A delay of a rank in every step.
#[derive(Debug, Clone, PartialEq)]
struct Delay {
    /// Milliseconds in addition to the step.
    ms: f64,
    /// Factor on the duration of the step; 1 adds nothing.
    times: f64,
    /// Relative variation of both from step to step.
    jitter: f64,
    key: Key,
}

impl Delay {
    /// Returns the delay of a rank, if `chaos.delay` names it.
    fn of(config: &Config, rank: usize) -> Option<Self> {
        let key = Key::new(config.train.seed).stream("delay").rank(rank);
        let delays = config.chaos.delays().ok()?;
        let of = delays.into_iter().find(|delay| delay.rank == rank)?;
        Some(Self { ms: of.ms, times: of.times, jitter: of.jitter, key })
    }

    /// Returns the sleep after a step that took `duration`.
    fn length(&self, step: u64, duration: Duration) -> Duration {
        let mut random = [0.0];
        self.key.step(step).uniform(0, &mut random);
        let factor = 1.0 + self.jitter * (2.0 * random[0] - 1.0);
        let seconds = (self.ms / 1000.0 + (self.times - 1.0) * duration.as_secs_f64()) * factor;
        Duration::from_secs_f64(seconds.max(0.0))
    }
}

/// The faults of a rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Faults {
    delay: Option<Delay>,
    flips: Vec<BitFlip>,
    stalls: Vec<Stall>,
}

impl Faults {
    /// Returns the faults of a rank.
    pub(super) fn of(config: &Config, rank: usize) -> Self {
        let (mut flips, mut stalls) =
            (config.chaos.flips().unwrap_or_default(), config.chaos.stalls().unwrap_or_default());
        flips.retain(|flip| flip.rank == rank);
        stalls.retain(|stall| stall.rank == rank);
        Self { delay: Delay::of(config, rank), flips, stalls }
    }

    /// Sleeps at the end of a step, counted from 0, that took `duration`.
    pub(super) fn hold_up(&self, clock: Clock, step: u64, duration: Duration) {
        let Some(delay) = &self.delay else { return };
        let span = tracing::trace_span!(target: "phalanx_trace::compute", "hold up on purpose");
        span.in_scope(|| clock.sleep(delay.length(step, duration)));
    }

    /// Hangs at this place of a step, counted from 1, if `chaos.stall` says so.
    pub(super) fn stall(&self, place: StallPlace, step: u64) {
        for stall in self.stalls.iter().filter(|stall| (stall.place, stall.step) == (place, step)) {
            tracing::warn!("chaos.stall: hangs for {} ms in step {step}", stall.ms);
            std::thread::sleep(Duration::from_secs_f64(stall.ms / 1000.0));
        }
    }

    /// Flips the bits that are due after the last step.
    pub(super) fn flip(&self, state: &TrainState) -> Result<(), TrainError> {
        let mut due = self.flips.iter().filter(|flip| flip.step == state.step);
        due.try_for_each(|flip| state.flip(flip.param.as_deref(), flip.bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_holds_up_the_named_rank() {
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
