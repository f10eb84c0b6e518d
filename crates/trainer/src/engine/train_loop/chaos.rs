//! Ranks that are slow on purpose: a tool for experiments on one machine.

use std::time::Duration;

use phalanx_collectives::Clock;
use phalanx_tensor::Key;

use crate::config::Config;

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
