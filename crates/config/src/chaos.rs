//! The section `[chaos]`: faults injected on purpose.

use super::keys::{ChaosConfig, Config};
use super::validate::Relations;

/// A rank that is slow on purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowRank {
    /// The rank.
    pub rank: usize,
    /// Milliseconds that it sleeps in every step.
    pub ms: f64,
    /// The factor by which its steps take longer.
    pub times: f64,
    /// The relative variation of that from step to step.
    pub jitter: f64,
}

/// A bit of a rank's weights that changes by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitFlip {
    /// The rank.
    pub rank: usize,
    /// After which step, counted from 1.
    pub step: u64,
    /// The parameter; the first that the rank has if there is none.
    pub param: Option<String>,
    /// Which bit of its first element, counted from the lowest.
    pub bit: u32,
}

/// Where a rank hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallPlace {
    /// Before the batch of the step is there.
    Data,
    /// When the step has been computed.
    Compute,
}

/// A rank that hangs once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// The rank.
    pub rank: usize,
    /// In which step, counted from 1.
    pub step: u64,
    /// Where.
    pub place: StallPlace,
    /// For how many milliseconds.
    pub ms: f64,
}

impl ChaosConfig {
    /// Returns the ranks that `chaos.delay` slows down.
    ///
    /// # Errors
    /// A text that names the wrong entry and the right form.
    pub fn delays(&self) -> Result<Vec<SlowRank>, String> {
        entries(&self.delay).map(slow_rank).collect()
    }

    /// Returns the bits that `chaos.flip` flips.
    ///
    /// # Errors
    /// A text that names the wrong entry and the right form.
    pub fn flips(&self) -> Result<Vec<BitFlip>, String> {
        entries(&self.flip).map(bit_flip).collect()
    }

    /// Returns the ranks that `chaos.stall` makes hang.
    ///
    /// # Errors
    /// A text that names the wrong entry and the right form.
    pub fn stalls(&self) -> Result<Vec<Stall>, String> {
        entries(&self.stall).map(stall).collect()
    }
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|entry| !entry.is_empty())
}

/// The parts `name=value` of an entry.
fn parts(entry: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = entry.split(',').map(|part| part.split_once('=').unwrap_or((part, "")));
    parts.map(|(name, value)| (name.trim(), value.trim()))
}

/// A number, 0 or above.
fn number((name, value): (&str, &str)) -> Result<f64, String> {
    let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("`{name}={value}` is not {name}=NUMBER, 0 or above"))
}

/// A whole number.
fn whole<T: std::str::FromStr>((name, value): (&str, &str)) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{name}={value}` is not {name}=NUMBER"))
}

fn unknown((name, value): (&str, &str), known: &str) -> String {
    format!("`{name}={value}` is unknown; there is: {known}")
}

fn lacks(entry: &str, name: &str) -> String {
    format!("`{entry}` names no {name}; begin with {name}=NUMBER")
}

fn slow_rank(text: &str) -> Result<SlowRank, String> {
    let (mut rank, mut slow) = (None, SlowRank { rank: 0, ms: 0.0, times: 1.0, jitter: 0.0 });
    for part in parts(text) {
        match part.0 {
            "rank" => rank = Some(whole(part)?),
            "ms" => slow.ms = number(part)?,
            "times" => slow.times = number(part)?,
            "jitter" => slow.jitter = number(part)?,
            _ => return Err(unknown(part, "rank=, ms=, times=, jitter=")),
        }
    }
    slow.rank = rank.ok_or_else(|| lacks(text, "rank"))?;
    if slow.ms > 3.6e6 || slow.times > 1e4 || slow.jitter > 1.0 {
        return Err(format!("`{text}` is too much: ms is at most 3600000, times 10000, jitter 1"));
    }
    if slow.times < 1.0 {
        return Err(format!("`{text}` makes steps shorter; times is 1 or above"));
    }
    Ok(slow)
}

fn bit_flip(text: &str) -> Result<BitFlip, String> {
    let (mut rank, mut step, mut param, mut bit) = (None, None, None, 0);
    for part in parts(text) {
        match part.0 {
            "rank" => rank = Some(whole(part)?),
            "step" => step = Some(whole(part)?),
            "param" => param = Some(part.1.to_owned()),
            "bit" => bit = whole(part)?,
            _ => return Err(unknown(part, "rank=, step=, param=, bit=")),
        }
    }
    if bit > 31 {
        return Err(format!("`{text}`: bit is from 0 to 31"));
    }
    let rank = rank.ok_or_else(|| lacks(text, "rank"))?;
    Ok(BitFlip { rank, step: step.ok_or_else(|| lacks(text, "step"))?, param, bit })
}

fn stall(text: &str) -> Result<Stall, String> {
    let (mut rank, mut step, mut place, mut ms) = (None, None, StallPlace::Compute, None);
    for part in parts(text) {
        match part {
            ("rank", _) => rank = Some(whole(part)?),
            ("step", _) => step = Some(whole(part)?),
            ("in", "data") => place = StallPlace::Data,
            ("in", "compute") => place = StallPlace::Compute,
            ("ms", _) => ms = Some(number(part)?),
            _ => return Err(unknown(part, "rank=, step=, in=data, in=compute, ms=")),
        }
    }
    let rank = rank.ok_or_else(|| lacks(text, "rank"))?;
    let step = step.ok_or_else(|| lacks(text, "step"))?;
    Ok(Stall { rank, step, place, ms: ms.ok_or_else(|| lacks(text, "ms"))? })
}

impl Config {
    /// Checks `[chaos]`.
    pub(super) fn check_chaos(&self, relations: &mut Relations<'_>) {
        let (chaos, ranks) = (&self.chaos, self.train.ranks);
        let named = [
            ("chaos.delay", chaos.delays().map(|all| all.iter().map(|slow| slow.rank).collect::<Vec<_>>())),
            ("chaos.flip", chaos.flips().map(|all| all.iter().map(|flip| flip.rank).collect())),
            ("chaos.stall", chaos.stalls().map(|all| all.iter().map(|stall| stall.rank).collect())),
        ];
        for (key, named) in named {
            match named {
                Err(problem) => relations.require(false, key, format!("{key}: {problem}")),
                Ok(named) => {
                    for rank in named {
                        let relation = format!("{key} names rank {rank}, but train.ranks is {ranks}");
                        relations.require(rank < ranks, key, relation);
                    }
                }
            }
        }
    }

    /// Checks what the comparison of replicas needs.
    pub(super) fn check_replicas(&self, relations: &mut Relations<'_>) {
        let (every, strategy) = (self.train.check_replicas, &self.train.strategy);
        // Ranks that share layers hold norms and biases alike.
        let share_layers = self.tensor_ranks().is_some_and(|ranks| ranks > 1);
        if share_layers && strategy.is_bulk_synchronous() {
            return;
        }
        if let Err(error) = strategy.has_replicas() {
            let relation = format!("train.check_replicas = {every}: {error}");
            relations.require(every == 0, "train.check_replicas", relation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails<T: std::fmt::Debug>(read: Result<T, String>, problem: &str) {
        let error = read.expect_err("it does not fit");
        assert!(error.contains(problem), "{error}");
    }

    #[test]
    fn slow_ranks_are_read_or_refused() {
        let read = |text: &str| ChaosConfig { delay: text.to_owned(), ..ChaosConfig::default() }.delays();
        assert_eq!(read("").expect("none"), []);
        let both = read("rank=1,ms=50,jitter=0.2; rank=0, times=3").expect("two");
        assert_eq!(both[0], SlowRank { rank: 1, ms: 50.0, times: 1.0, jitter: 0.2 });
        assert_eq!(both[1], SlowRank { rank: 0, ms: 0.0, times: 3.0, jitter: 0.0 });
        for (text, problem) in [
            ("ms=5", "names no rank"),
            ("rank=1,ms=-5", "0 or above"),
            ("rank=x", "rank=NUMBER"),
            ("rank=1,sleep=3", "there is: rank=, ms=, times=, jitter="),
            ("rank=1,times=0.5", "shorter"),
        ] {
            fails(read(text), problem);
        }
    }

    #[test]
    fn bits_and_hangs_are_read_or_refused() {
        let flips = |text: &str| ChaosConfig { flip: text.to_owned(), ..ChaosConfig::default() }.flips();
        let flip = BitFlip { rank: 1, step: 20, param: None, bit: 0 };
        assert_eq!(flips("rank=1,step=20").expect("one"), std::slice::from_ref(&flip));
        let certain = BitFlip { param: Some("fc.weight".to_owned()), bit: 30, ..flip };
        assert_eq!(flips("rank=1,step=20,param=fc.weight,bit=30").expect("one"), [certain]);
        fails(flips("rank=1"), "names no step");
        fails(flips("rank=1,step=2,bit=32"), "from 0 to 31");
        let stalls = |text: &str| ChaosConfig { stall: text.to_owned(), ..ChaosConfig::default() }.stalls();
        let hang = Stall { rank: 0, step: 3, place: StallPlace::Data, ms: 500.0 };
        assert_eq!(stalls("rank=0,step=3,in=data,ms=500").expect("one"), [hang]);
        fails(stalls("rank=0,step=3,in=space,ms=1"), "in=data, in=compute");
        fails(stalls("rank=0,step=3"), "names no ms");
    }
}
