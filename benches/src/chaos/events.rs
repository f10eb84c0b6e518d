//! What happens to a training, drawn.

use std::fmt;

use clap::ValueEnum;
use phalanx_tensor::Key;

use super::attempt::Attempt;

/// What can happen. Worlds whose ranks join and leave while training goes on will have kinds of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A rank is killed at any instant.
    Kill,
    /// A rank is killed while a checkpoint is being written.
    Saving,
    /// A rank is stopped, and goes on after a while that others may wait for or not.
    Stop,
    /// A rank's connection to rank 0 is cut.
    Cut,
    /// The launcher is killed, and with it its ranks.
    Launcher,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Saving => "kills while saving",
            Self::Stop => "stops",
            Self::Cut => "cuts",
            Self::Launcher => "killed launchers",
        }
    }
}

/// Something that happens to one attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// The rank.
    pub(crate) rank: usize,
    /// After so many steps of this attempt; before the ranks have met if it is 0.
    pub(crate) steps: u64,
    /// So many milliseconds later.
    pub(crate) ms: f64,
    /// For how many milliseconds a stop lasts.
    pub(crate) lasts_ms: f64,
}

/// What happens to a training: to each of its attempts one event, and nothing to the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    attempts: Vec<(usize, &'static str, Option<Event>)>,
    settings: Vec<String>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (ranks, strategy, event) in &self.attempts {
            write!(f, "{strategy} x{ranks}")?;
            if let Some(Event { kind, rank, steps, ms, lasts_ms }) = event {
                write!(f, ", {} rank {rank} after step +{steps} +{ms:.1} ms", kind.name())?;
                if *kind == Kind::Stop {
                    write!(f, " for {lasts_ms:.0} ms")?;
                }
                write!(f, "; ")?;
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
    /// The so-many-th of a seed.
    pub(crate) fn draw(seed: u64, number: u64, only: Option<Kind>) -> Self {
        let mut drawn = Drawn { key: Key::new(seed).stream("chaos").stream(&number.to_string()), next: 0 };
        let settings = vec![format!("checkpoint.asynchronous={}", drawn.below(4) > 0)];
        let disturbed = 1 + drawn.below(3);
        let mut attempts = Vec::new();
        for _ in 0..disturbed {
            let (ranks, strategy) = crew(&mut drawn);
            let kinds =
                [Kind::Kill, Kind::Kill, Kind::Saving, Kind::Saving, Kind::Stop, Kind::Cut, Kind::Launcher];
            let kind = only.unwrap_or(drawn.one_of(&kinds));
            // A cut is one of rank 0's connections, and needs a rank besides.
            let ranks = if kind == Kind::Cut { ranks.max(2) } else { ranks };
            let rank = if kind == Kind::Cut { 1 + drawn.below(ranks - 1) } else { drawn.below(ranks) };
            let steps = drawn.below(11) as u64;
            let ms = match kind {
                Kind::Saving => 20.0 * drawn.part() * drawn.part(),
                _ if steps == 0 => 600.0 * drawn.part(),
                _ => 40.0 * drawn.part(),
            };
            let lasts_ms = if drawn.below(4) == 0 { 20_000.0 } else { 1500.0 * drawn.part() };
            attempts.push((ranks, strategy, Some(Event { kind, rank, steps, ms, lasts_ms })));
        }
        let (ranks, strategy) = crew(&mut drawn);
        attempts.push((ranks, strategy, None));
        Self { attempts, settings }
    }

    /// Its attempts, in order.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = Attempt<'_>> {
        self.attempts.iter().enumerate().map(|(at, (ranks, strategy, event))| Attempt {
            ranks: *ranks,
            strategy,
            resumes: at > 0,
            event: *event,
            settings: &self.settings,
        })
    }
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
        let kinds: Vec<Kind> =
            schedules.iter().flat_map(|one| one.attempts().filter_map(|one| Some(one.event?.kind))).collect();
        for kind in Kind::value_variants() {
            assert!(kinds.contains(kind), "{kind:?}");
        }
        for schedule in &schedules {
            let attempts: Vec<_> = schedule.attempts().collect();
            assert!(attempts.iter().skip(1).all(|one| one.resumes) && !attempts[0].resumes);
            assert!(attempts.last().is_some_and(|last| last.event.is_none()), "the last is left alone");
            assert!(attempts.iter().all(|one| one.event.is_none_or(|event| event.rank < one.ranks)));
        }
    }
}
