//! Random schedules of disturbances.

use std::fmt;

use super::damage::Damage;
use super::draws::RandomDraws;
use super::event::{Event, Kind};

/// The ranks of an attempt and their disturbances.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attempt {
    /// The damage to the newest checkpoint before the attempt.
    pub(crate) damage: Option<Damage>,
    pub(crate) ranks: usize,
    pub(crate) strategy: &'static str,
    /// The number of replacements by the launcher, if the world is elastic.
    pub(crate) elastic: Option<usize>,
    /// In the order of their steps.
    pub(crate) events: Vec<Event>,
}

/// The attempts of a training with their disturbances. The last attempt has none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) settings: Vec<String>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, attempt) in self.attempts.iter().enumerate() {
            let Attempt { damage, ranks, strategy, elastic, events } = attempt;
            write!(f, "{}", if at > 0 { "; " } else { "" })?;
            if let Some(damage) = damage {
                write!(f, "{damage}, ")?;
            }
            write!(f, "{strategy} x{ranks}")?;
            if let Some(replacements) = elastic {
                write!(f, " elastic, {replacements} replaced")?;
            }
            for Event { kind, rank, steps, ms, lasts_ms, left } in events {
                write!(f, ", {} rank {rank} after step +{steps} +{ms:.1} ms", kind.name())?;
                match kind {
                    Kind::Stop if *lasts_ms >= FOR_EVER_MS => write!(f, " for ever")?,
                    Kind::Stop => write!(f, " for {lasts_ms:.0} ms")?,
                    Kind::Descriptors | Kind::Full => write!(f, " with {left:.3} left")?,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The kinds that every attempt may have, each as often.
const COMMON: [Kind; 8] = [
    Kind::Saving,
    Kind::Stop,
    Kind::Cut,
    Kind::Launcher,
    Kind::Writer,
    Kind::Strangers,
    Kind::Descriptors,
    Kind::Full,
];

/// The length of a stop that outlasts its attempt, in milliseconds.
const FOR_EVER_MS: f64 = 1e9;

impl Schedule {
    /// The largest number of ranks of an elastic world.
    pub(crate) const MOST: usize = 4;

    /// Returns schedule `number` of a seed.
    pub(crate) fn draw(seed: u64, number: u64, only: Option<Kind>) -> Self {
        let mut drawn = RandomDraws::new(seed, "chaos", number);
        let settings = vec![format!("checkpoint.asynchronous={}", drawn.below(4) > 0)];
        let disturbed = 1 + drawn.below(3);
        let mut attempts = Vec::new();
        for _ in 0..disturbed {
            let changes = drawn.below(5) < 2;
            let is_elastic = only.map_or(changes, Kind::is_of_elastic_worlds);
            attempts.push(if is_elastic { elastic(&mut drawn, only) } else { fixed(&mut drawn, only) });
        }
        let (ranks, strategy) = crew(&mut drawn);
        attempts.push(Attempt { damage: None, ranks, strategy, elastic: None, events: Vec::new() });
        // Once at most, so that an older checkpoint is whole.
        if drawn.below(3) == 0 {
            let at = 1 + drawn.below(attempts.len() - 1);
            attempts[at].damage = Some(Damage::draw(&mut drawn));
        }
        Self { attempts, settings }
    }
}

/// Draws an attempt that ends by its disturbance.
fn fixed(drawn: &mut RandomDraws, only: Option<Kind>) -> Attempt {
    let (ranks, strategy) = crew(drawn);
    let kinds = [&[Kind::Kill, Kind::Kill, Kind::Saving], &COMMON[..]].concat();
    let kind = only.unwrap_or(drawn.one_of(&kinds));
    let steps = drawn.below(11) as u64;
    let events = vec![event(drawn, kind, ranks, steps)];
    Attempt { damage: None, ranks, strategy, elastic: None, events }
}

/// Draws an attempt of an elastic world. It continues while enough ranks are left.
fn elastic(drawn: &mut RandomDraws, only: Option<Kind>) -> Attempt {
    let (ranks, strategy) = crew(drawn);
    let often = [Kind::Join, Kind::Join, Kind::Join, Kind::Kill, Kind::Kill, Kind::Leave, Kind::Leave];
    let kinds = [&often[..], &COMMON[..]].concat();
    let count = 1 + drawn.below(4);
    let steps: Vec<u64> = (0..count).map(|_| drawn.below(19) as u64).collect();
    let events = steps.into_iter().map(|steps| {
        let kind = only.unwrap_or(drawn.one_of(&kinds));
        event(drawn, kind, Schedule::MOST, steps)
    });
    let mut events: Vec<Event> = events.collect();
    events.sort_by_key(|event| event.steps);
    Attempt { damage: None, ranks, strategy, elastic: Some(drawn.below(3)), events }
}

fn event(drawn: &mut RandomDraws, kind: Kind, ranks: usize, steps: u64) -> Event {
    let rank = drawn.below(ranks);
    // A rank can only join a world that trains, and a second writer is refused only while the first holds the run.
    let steps = if matches!(kind, Kind::Join | Kind::Writer) { steps.max(1) } else { steps };
    let ms = match kind {
        Kind::Saving => 20.0 * drawn.part() * drawn.part(),
        _ if steps == 0 => 600.0 * drawn.part(),
        _ => 40.0 * drawn.part(),
    };
    let lasts_ms = match drawn.below(8) {
        0 => FOR_EVER_MS,
        1 => 20_000.0,
        _ => 1500.0 * drawn.part(),
    };
    Event { kind, rank, steps, ms, lasts_ms, left: drawn.part() }
}

/// Draws the number of ranks and their strategy.
fn crew(drawn: &mut RandomDraws) -> (usize, &'static str) {
    let ranks = 2 + drawn.below(3);
    let strategies: &[&str] =
        if ranks == 4 { &["ddp", "zero2", "fsdp", "hsdp"] } else { &["ddp", "zero2", "fsdp"] };
    (ranks, drawn.one_of(strategies))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

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
