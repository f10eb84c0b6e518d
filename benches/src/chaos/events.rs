//! What happens to a training, drawn.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use phalanx_tensor::Key;

use super::attempt::Attempt;

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A rank is killed at any instant.
    Kill,
    /// A rank is killed while a checkpoint is being written.
    Saving,
    /// A rank is stopped, and goes on after a while that others may wait for or not.
    Stop,
    /// All connections of a rank are cut.
    Cut,
    /// The launcher is killed, and with it its ranks.
    Launcher,
    /// One more rank comes while training goes on.
    Join,
    /// A rank leaves while training goes on.
    Leave,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Saving => "kills while saving",
            Self::Stop => "stops",
            Self::Cut => "cuts",
            Self::Launcher => "killed launchers",
            Self::Join => "joins",
            Self::Leave => "leaves",
        }
    }

    /// Whether it is about worlds that change while training goes on.
    fn is_of_elastic_worlds(self) -> bool {
        matches!(self, Self::Join | Self::Leave)
    }
}

/// Something that happens to one attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// The rank; where ranks have come and gone, the so-many-th of those who are there, counted round.
    pub(crate) rank: usize,
    /// After so many steps of this attempt; before the ranks have met if it is 0.
    pub(crate) steps: u64,
    /// So many milliseconds later.
    pub(crate) ms: f64,
    /// For how many milliseconds a stop lasts.
    pub(crate) lasts_ms: f64,
}

impl Event {
    /// Whether it comes after `steps` steps, and its delay.
    pub(crate) fn is_due(&self, steps: u64, is_saving: impl FnOnce() -> bool) -> bool {
        steps >= self.steps && (self.kind != Kind::Saving || is_saving())
    }

    /// Whether its delay counts from the beginning of the attempt.
    pub(crate) fn is_before_the_first_step(&self) -> bool {
        self.steps == 0 && self.kind != Kind::Saving
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_secs_f64(self.ms / 1e3)
    }

    /// For how long a stop lasts.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs_f64(self.lasts_ms / 1e3)
    }
}

/// What happens to a training: something to each of its attempts, and nothing to the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) settings: Vec<String>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Attempt { ranks, strategy, elastic, events }) in self.attempts.iter().enumerate() {
            write!(f, "{}{strategy} x{ranks}", if at > 0 { "; " } else { "" })?;
            if let Some(replacements) = elastic {
                write!(f, " elastic, {replacements} replaced")?;
            }
            for Event { kind, rank, steps, ms, lasts_ms } in events {
                write!(f, ", {} rank {rank} after step +{steps} +{ms:.1} ms", kind.name())?;
                if *kind == Kind::Stop {
                    write!(f, " for {lasts_ms:.0} ms")?;
                }
            }
        }
        Ok(())
    }
}

/// Numbers that are drawn one after the other.
struct Drawn {
    key: Key,
    next: u64,
}

impl Drawn {
    /// From 0 to below 1.
    fn part(&mut self) -> f64 {
        let mut drawn = [0.0];
        self.key.step(self.next).uniform(0, &mut drawn);
        self.next += 1;
        drawn[0]
    }

    /// From 0 to below `end`.
    fn below(&mut self, end: usize) -> usize {
        ((self.part() * end as f64) as usize).min(end - 1)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

impl Schedule {
    /// With how many ranks a world goes on at most.
    pub(crate) const MOST: usize = 4;

    /// The so-many-th of a seed.
    pub(crate) fn draw(seed: u64, number: u64, only: Option<Kind>) -> Self {
        let mut drawn = Drawn { key: Key::new(seed).stream("chaos").stream(&number.to_string()), next: 0 };
        let settings = vec![format!("checkpoint.asynchronous={}", drawn.below(4) > 0)];
        let disturbed = 1 + drawn.below(3);
        let mut attempts = Vec::new();
        for _ in 0..disturbed {
            let changes = drawn.below(5) < 2;
            let is_elastic = only.map_or(changes, Kind::is_of_elastic_worlds);
            attempts.push(if is_elastic { elastic(&mut drawn, only) } else { fixed(&mut drawn, only) });
        }
        let (ranks, strategy) = crew(&mut drawn);
        attempts.push(Attempt { ranks, strategy, elastic: None, events: Vec::new() });
        Self { attempts, settings }
    }
}

/// An attempt that ends with what happens to it.
fn fixed(drawn: &mut Drawn, only: Option<Kind>) -> Attempt {
    let (ranks, strategy) = crew(drawn);
    let kinds = [Kind::Kill, Kind::Kill, Kind::Saving, Kind::Saving, Kind::Stop, Kind::Cut, Kind::Launcher];
    let kind = only.unwrap_or(drawn.one_of(&kinds));
    let steps = drawn.below(11) as u64;
    Attempt { ranks, strategy, elastic: None, events: vec![event(drawn, kind, ranks, steps)] }
}

/// An attempt that goes on through what happens to it, if enough ranks are left.
fn elastic(drawn: &mut Drawn, only: Option<Kind>) -> Attempt {
    let (ranks, strategy) = crew(drawn);
    let kinds = [
        Kind::Join,
        Kind::Join,
        Kind::Join,
        Kind::Kill,
        Kind::Kill,
        Kind::Leave,
        Kind::Leave,
        Kind::Saving,
        Kind::Stop,
        Kind::Cut,
        Kind::Launcher,
    ];
    let count = 1 + drawn.below(4);
    let mut steps: Vec<u64> = (0..count).map(|_| drawn.below(19) as u64).collect();
    steps.sort_unstable();
    let events = steps.into_iter().map(|steps| {
        let kind = only.unwrap_or(drawn.one_of(&kinds));
        // Nothing can be joined before it is there.
        let steps = if kind == Kind::Join { steps.max(1) } else { steps };
        event(drawn, kind, Schedule::MOST, steps)
    });
    let events = events.collect();
    Attempt { ranks, strategy, elastic: Some(drawn.below(3)), events }
}

fn event(drawn: &mut Drawn, kind: Kind, ranks: usize, steps: u64) -> Event {
    let rank = drawn.below(ranks);
    let ms = match kind {
        Kind::Saving => 20.0 * drawn.part() * drawn.part(),
        _ if steps == 0 => 600.0 * drawn.part(),
        _ => 40.0 * drawn.part(),
    };
    let lasts_ms = if drawn.below(4) == 0 { 20_000.0 } else { 1500.0 * drawn.part() };
    Event { kind, rank, steps, ms, lasts_ms }
}

/// How many ranks there are, and how they share the work.
fn crew(drawn: &mut Drawn) -> (usize, &'static str) {
    let ranks = 2 + drawn.below(3);
    let strategies: &[&str] =
        if ranks == 4 { &["ddp", "zero2", "fsdp", "hsdp"] } else { &["ddp", "zero2", "fsdp"] };
    (ranks, drawn.one_of(strategies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_all_and_kinds_of_all_sorts_come() {
        let all = |seed| (0..60).map(|number| Schedule::draw(seed, number, None)).collect::<Vec<_>>();
        let schedules = all(7);
        assert_eq!(schedules, all(7));
        assert_ne!(schedules, all(8));
        let attempts = || schedules.iter().flat_map(|one| &one.attempts);
        for kind in Kind::value_variants() {
            assert!(attempts().any(|one| one.events.iter().any(|event| event.kind == *kind)), "{kind:?}");
            let only = Schedule::draw(7, 1, Some(*kind));
            assert!(only.attempts.iter().flat_map(|one| &one.events).all(|event| event.kind == *kind));
        }
        for schedule in &schedules {
            let (last, disturbed) = schedule.attempts.split_last().expect("attempts");
            assert!(last.events.is_empty() && last.elastic.is_none(), "the last is left alone");
            assert!(disturbed.iter().all(|one| !one.events.is_empty()));
        }
        for attempt in attempts() {
            let of_elastic = attempt.events.iter().any(|event| event.kind.is_of_elastic_worlds());
            assert!(attempt.elastic.is_some() || !of_elastic && attempt.events.len() <= 1);
            assert!(attempt.events.is_sorted_by_key(|event| event.steps));
        }
    }
}
