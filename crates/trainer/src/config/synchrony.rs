//! What `[sync]` and `[chaos]` can say, and what strategies whose ranks are apart cannot do.

use phalanx_sharding::{ServerPace, SyncOptions, Synchrony};
use phalanx_tensor::Precision;

use super::keys::{ChaosConfig, Config};
use super::validate::Relations;

/// A rank that is slow on purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowRank {
    /// The rank.
    pub rank: usize,
    /// Milliseconds that it sleeps in every step.
    pub ms: f64,
    /// How many times as long its steps take.
    pub times: f64,
    /// How much that varies from step to step, as a part of it.
    pub jitter: f64,
}

impl ChaosConfig {
    /// The ranks that `chaos.delay` makes slow.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn delays(&self) -> Result<Vec<SlowRank>, String> {
        let all = self.delay.split(';').map(str::trim).filter(|delay| !delay.is_empty());
        all.map(slow_rank).collect()
    }
}

fn slow_rank(text: &str) -> Result<SlowRank, String> {
    let (mut rank, mut slow) = (None, SlowRank { rank: 0, ms: 0.0, times: 1.0, jitter: 0.0 });
    for part in text.split(',').map(str::trim) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let number = || {
            let number =
                value.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            number.ok_or_else(|| format!("`{part}` is not {name}=NUMBER, 0 or above"))
        };
        match name.trim() {
            "rank" => rank = Some(value.trim().parse().map_err(|_| format!("`{part}` is not rank=NUMBER"))?),
            "ms" => slow.ms = number()?,
            "times" => slow.times = number()?,
            "jitter" => slow.jitter = number()?,
            _ => return Err(format!("`{part}` is unknown; there is: rank=, ms=, times=, jitter=")),
        }
    }
    slow.rank = rank.ok_or_else(|| format!("`{text}` names no rank; begin with rank=NUMBER"))?;
    if slow.ms > 3.6e6 || slow.times > 1e4 || slow.jitter > 1.0 {
        return Err(format!("`{text}` is too much: ms is at most 3600000, times 10000, jitter 1"));
    }
    if slow.times < 1.0 {
        return Err(format!("`{text}` makes steps shorter; times is 1 or above"));
    }
    Ok(slow)
}

impl Config {
    /// How many processes, or threads, a run has: workers, and servers that do nothing else.
    pub fn world_size(&self) -> usize {
        self.train.ranks.max(1).saturating_add(self.sync.servers)
    }

    /// Checks `[sync]` and `[chaos]`, and that the strategy can do what the rest asks for.
    pub(super) fn check_synchrony(&self, relations: &mut Relations<'_>) {
        let Self { train, sync, chaos, .. } = self;
        match chaos.delays() {
            Err(problem) => relations.require(false, "chaos.delay", format!("chaos.delay: {problem}")),
            Ok(delays) => {
                for delay in delays {
                    let (rank, ranks) = (delay.rank, train.ranks);
                    let relation = format!("chaos.delay slows rank {rank}, but train.ranks is {ranks}");
                    relations.require(rank < ranks, "chaos.delay", relation);
                }
            }
        }
        let strategy = &train.strategy;
        let name = strategy.name;
        let options = SyncOptions {
            every: sync.every,
            fragments: sync.fragments,
            overlap: sync.overlap,
            mixing: sync.mixing,
            outer_bf16: sync.outer_bf16,
            compensation: sync.compensation,
            servers: sync.servers,
            ..SyncOptions::default()
        };
        if let Err(error) = options.check(strategy) {
            relations.require(false, "train.strategy", format!("[sync]: {error}"));
        }
        relations.require(
            sync.min_workers == 0 || strategy.outlives_workers(sync.servers),
            "sync.min_workers",
            format!(
                "sync.min_workers = {}: {name} with sync.servers = {} cannot go on without a worker; d-psgd, sgp and ad-psgd can, and \
                 ps-ssp and ps-asp with sync.servers above 0",
                sync.min_workers, sync.servers
            ),
        );
        relations.require(
            sync.min_workers <= train.ranks || train.ranks == 1,
            "sync.min_workers",
            format!("sync.min_workers = {} is above train.ranks = {}", sync.min_workers, train.ranks),
        );
        if strategy.is_bulk_synchronous() {
            return;
        }
        let numbers = [("sync.outer_lr", sync.outer_lr), ("sync.outer_momentum", sync.outer_momentum)];
        for (key, value) in numbers {
            relations.not_negative(key, value);
        }
        let together = matches!(strategy.synchrony, Synchrony::Servers(ServerPace::Together));
        relations.require(
            together || (train.precision != Precision::F16 && train.loss_scale == 0.0),
            "train.precision",
            format!("a loss that is scaled needs all ranks to agree on every step, which {name} does not; use bf16 or f32"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ranks_are_read_or_refused() {
        let read = |text: &str| ChaosConfig { delay: text.to_owned() }.delays();
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
            let error = read(text).expect_err("it does not fit");
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
