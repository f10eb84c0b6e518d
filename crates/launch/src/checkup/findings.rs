//! The problems that the checks of ranks find.

use std::collections::BTreeMap;
use std::fmt;

use super::{Checkup, Facts};

/// The tolerated clock offset of a host from rank 0, in seconds.
const CLOCK: f64 = 1.0;

/// A problem.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// Ranks differ in a property. Lists each variant with its ranks, the most common first.
    Differs {
        /// The property: `the version`, `the program`, `the data`.
        what: &'static str,
        /// Each variant and its ranks.
        variants: Vec<(String, Vec<usize>)>,
    },
    /// Ranks cannot read the data.
    NoData {
        /// The hosts and reasons, without repetitions.
        hosts: Vec<(String, String)>,
    },
    /// The clock of a host differs from rank 0's.
    Clock {
        /// The host.
        host: String,
        /// The offset in seconds; positive if it is ahead.
        ahead: f64,
    },
    /// Messages between two hosts are slow compared with those of other pairs.
    Slow {
        /// The hosts.
        hosts: [String; 2],
        /// A description of the measurement and of the median of all pairs.
        measured: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs { what, variants } => {
                write!(f, "{what} differs:")?;
                for (index, (variant, ranks)) in variants.iter().enumerate() {
                    let comma = if index > 0 { ";" } else { "" };
                    write!(f, "{comma} {variant} on ranks {ranks:?}")?;
                }
                Ok(())
            }
            Self::NoData { hosts } => {
                write!(f, "the data cannot be read")?;
                for (index, (host, why)) in hosts.iter().enumerate() {
                    write!(f, "{} from {host} ({why})", if index > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Self::Clock { host, ahead } => {
                let word = if *ahead > 0.0 { "ahead of" } else { "behind" };
                write!(f, "the clock of {host} is {:.1} s {word} that of rank 0", ahead.abs())
            }
            Self::Slow { hosts: [one, other], measured } => {
                write!(f, "messages between {one} and {other} are slow: {measured}")
            }
        }
    }
}

/// Returns the problems: differences, then clocks, then pairs that are more than `slow` times slower than the median.
pub fn findings(checkup: &Checkup, slow: f64) -> Vec<Finding> {
    let ranks = &checkup.ranks;
    let mut found = Vec::new();
    found.extend(differs("the version", ranks, |facts| Some(facts.machine.version.clone())));
    found.extend(differs("the program's file", ranks, |facts| {
        Some(facts.program.clone()).filter(|digits| !digits.is_empty())
    }));
    found.extend(differs("the data", ranks, |facts| {
        let (files, bytes, digits) = facts.data.as_ref()?.content.as_ref().ok()?;
        Some(format!("{digits} ({files} files, {bytes} bytes)"))
    }));
    let mut blind: Vec<(String, String)> = ranks
        .iter()
        .filter_map(|facts| {
            let data = facts.data.as_ref()?;
            let why = data.content.as_ref().err()?;
            Some((facts.host.clone(), format!("{}: {why}", data.path.display())))
        })
        .collect();
    blind.dedup();
    if !blind.is_empty() {
        found.push(Finding::NoData { hosts: blind });
    }
    for facts in ranks {
        let Some(clock) = facts.clock else { continue };
        // An offset within the measurement uncertainty is no problem of the clock.
        let sure = (clock.ahead.unsigned_abs().saturating_sub(clock.uncertainty)) as f64 / 1e9;
        if sure > CLOCK {
            found.push(Finding::Clock { host: facts.host.clone(), ahead: clock.ahead as f64 / 1e9 });
        }
    }
    found.extend(slow_pairs(checkup, slow));
    found
}

/// Returns the difference of ranks in a property, if any.
fn differs(what: &'static str, ranks: &[Facts], of: impl Fn(&Facts) -> Option<String>) -> Option<Finding> {
    let mut variants: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for facts in ranks {
        if let Some(variant) = of(facts) {
            variants.entry(variant).or_default().push(facts.rank);
        }
    }
    let mut variants: Vec<_> = variants.into_iter().collect();
    variants.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    (variants.len() > 1).then_some(Finding::Differs { what, variants })
}

/// Finds pairs that are more than `slow` times slower than the median.
fn slow_pairs(checkup: &Checkup, slow: f64) -> Vec<Finding> {
    let mut rates: Vec<f64> = checkup.pairs.iter().flat_map(|pair| [pair.there, pair.back]).collect();
    rates.sort_by(f64::total_cmp);
    let Some(median) = rates.get(rates.len() / 2).copied() else { return Vec::new() };
    let slow = checkup.pairs.iter().filter(|pair| pair.there.min(pair.back) * slow < median);
    slow.map(|pair| Finding::Slow {
        hosts: [pair.from, pair.to].map(|rank| checkup.host_of(rank).to_owned()),
        measured: format!(
            "{:.2} and {:.2} Gbit/s, where the median is {:.2}",
            pair.there * 8e-9,
            pair.back * 8e-9,
            median * 8e-9
        ),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkup::{DataFacts, Pair};
    use phalanx_run::Machine;
    use phalanx_trace::clock::Offset;

    fn sound(count: usize) -> Checkup {
        let facts = |rank: usize| Facts {
            rank,
            host_number: rank,
            host: format!("n{rank}"),
            machine: Machine { version: "1.0.0".into(), ..Machine::default() },
            program: "abc".into(),
            data: Some(DataFacts { path: "/data".into(), content: Ok((2, 10, "d0".into())) }),
            clock: (rank > 0).then(Offset::default),
        };
        let pairs = super::super::rounds(count).concat().into_iter();
        let pair = |(from, to)| Pair { from, to, latency: 2e-5, there: 1e9, back: 1.1e9 };
        Checkup { ranks: (0..count).map(facts).collect(), pairs: pairs.map(pair).collect() }
    }

    #[test]
    fn nothing_is_found_where_nothing_is_wrong() {
        assert_eq!(sound(4).findings(3.0), []);
        assert_eq!(sound(1).findings(3.0), []);
    }

    #[test]
    fn what_is_wrong_is_told_with_names() {
        type Break = fn(&mut Checkup);
        let cases: [(Break, &str); 6] = [
            (
                |it| it.ranks[2].machine.version = "0.9.0".into(),
                "the version differs: 1.0.0 on ranks [0, 1, 3]; 0.9.0 on ranks [2]",
            ),
            (
                |it| it.ranks[1].program = "def".into(),
                "the program's file differs: abc on ranks [0, 2, 3]; def on ranks [1]",
            ),
            (
                |it| it.ranks[3].data.as_mut().expect("data").content = Ok((1, 8, "d1".into())),
                "the data differs: d0 (2 files, 10 bytes) on ranks [0, 1, 2]; d1 (1 files, 8 bytes) on ranks [3]",
            ),
            (
                |it| it.ranks[1].data.as_mut().expect("data").content = Err("not mounted".into()),
                "the data cannot be read from n1 (/data: not mounted)",
            ),
            (
                |it| {
                    let clock = Offset { ahead: -2_500_000_000, uncertainty: 1000, at: 0 };
                    it.ranks[2].clock = Some(clock);
                },
                "the clock of n2 is 2.5 s behind that of rank 0",
            ),
            (|it| it.pairs[0].back = 1e8, "are slow: 8.00 and 0.80 Gbit/s, where the median is 8.00"),
        ];
        for (wrong, words) in cases {
            let mut checkup = sound(4);
            wrong(&mut checkup);
            let found = checkup.findings(3.0);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().contains(words), "{}", found[0]);
        }
    }

    #[test]
    fn a_clock_is_not_blamed_for_the_way_of_messages() {
        let mut checkup = sound(2);
        checkup.ranks[1].clock = Some(Offset { ahead: 1_400_000_000, uncertainty: 900_000_000, at: 0 });
        assert_eq!(checkup.findings(3.0), []);
    }
}
