//! Predicted durations of operations, from published formulas and the measured latency and bandwidth of links.
//!
//! `n` ranks, `S` bytes, `α` seconds a message, `β` seconds a transferred byte, `γ` seconds a reduced byte. Messages have at most
//! [`PIECE`] bytes, so `S` bytes are `m(S)` messages. The formulas are those of Thakur, Rabenseifner & Gropp (2005) and Patarasuk &
//! Yuan (2009), with `m` in place of one message.

use serde::{Deserialize, Serialize};

use super::grid;
use crate::operation::{Algorithm, Kind};
use crate::partition::PIECE;
use crate::simulated::SimulatedLink;

/// The cost of a message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkCost {
    /// Seconds of every message, however short (α).
    pub alpha: f64,
    /// Seconds of a transferred byte (β).
    pub beta: f64,
}

/// The cost of a message on one kind of link. Ranks that send at the same time share cores and wires.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkCosts {
    /// While all ranks send, as in a ring.
    pub busy: LinkCost,
    /// While one rank sends to one other, as to a single reducer.
    pub alone: LinkCost,
}

/// The measured costs of a world, equal on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// A synchronisation in memory that all ranks map, and a byte through it; `None` without such memory.
    pub direct: Option<LinkCost>,
    /// Messages between ranks of one host; `None` if no host has two ranks.
    pub local: Option<LinkCosts>,
    /// Messages between hosts; `None` if there is one host.
    pub remote: Option<LinkCosts>,
    /// Seconds of a reduced byte (γ).
    pub gamma: f64,
}

fn messages(bytes: f64) -> f64 {
    (bytes / PIECE as f64).ceil().max(1.0)
}

impl LinkCost {
    /// Returns the seconds of a step in which a rank sends `bytes` bytes.
    fn step(&self, bytes: f64) -> f64 {
        messages(bytes) * self.alpha + bytes * self.beta
    }
}

impl LinkCosts {
    /// The costs of messages on a simulated link, which do not depend on the number of ranks that send.
    pub(crate) fn over(link: &SimulatedLink) -> Self {
        let cost = LinkCost { alpha: link.latency.as_secs_f64(), beta: 1.0 / link.bandwidth };
        Self { busy: cost, alone: cost }
    }

    /// Returns the cost of a step in which `part` of all ranks send, from one (0) to all (1).
    fn step(&self, bytes: f64, part: f64) -> f64 {
        self.alone.step(bytes) + part * (self.busy.step(bytes) - self.alone.step(bytes))
    }
}

/// The terms of the cost formulas of one level of links.
struct CostTerms {
    link: LinkCosts,
    gamma: f64,
    n: f64,
    bytes: f64,
}

impl CostTerms {
    fn log(&self) -> f64 {
        self.n.log2().ceil()
    }

    fn among(&self, n: usize, bytes: f64) -> Self {
        Self { n: n as f64, bytes, ..*self }
    }

    /// Once up or down a binomial tree. The number of pairs halves or doubles with each step.
    fn tree(&self) -> f64 {
        let pairs = |step: i32| (self.n / 2_f64.powi(step)).floor().max(1.0);
        let part = |step: i32| (pairs(step) - 1.0) / (self.n - 1.0).max(1.0);
        (1..=self.log() as i32).map(|step| self.link.step(self.bytes, part(step))).sum()
    }

    /// All other buffers to one rank, or one rank's to all others, one after the other.
    fn single(&self) -> f64 {
        (self.n - 1.0) * self.link.alone.step(self.bytes)
    }

    fn ring_scatter(&self) -> f64 {
        let part = self.bytes / self.n;
        (self.n - 1.0) * (self.link.busy.step(part) + part * self.gamma)
    }

    fn ring_gather(&self) -> f64 {
        (self.n - 1.0) * self.link.busy.step(self.bytes / self.n)
    }

    fn ring(&self) -> f64 {
        self.ring_scatter() + self.ring_gather()
    }

    fn halving_gather(&self) -> f64 {
        let power = 2_f64.powf(self.n.log2().floor());
        (1..=power.log2() as i32).map(|step| self.link.busy.step(self.bytes / 2_f64.powi(step))).sum()
    }

    fn halving(&self) -> f64 {
        let power = 2_f64.powf(self.n.log2().floor());
        let folding = if power < self.n {
            2.0 * self.link.alone.step(self.bytes) + self.bytes * self.gamma
        } else {
            0.0
        };
        2.0 * self.halving_gather() + self.bytes * (power - 1.0) / power * self.gamma + folding
    }
}

impl CostModel {
    /// Returns the predicted seconds of an operation over a buffer of `bytes` bytes. `hosts` is the number of ranks of each host.
    /// `None` if the algorithm does not have the operation, or its links were not measured.
    pub fn predict(
        &self,
        operation: &str,
        algorithm: Algorithm,
        bytes: usize,
        hosts: &[usize],
    ) -> Option<f64> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == operation)?;
        self.of(kind, algorithm, bytes, hosts)
    }

    /// Returns the predicted seconds of a gossip step: every rank sends `bytes` bytes to each of its `neighbours`, one after the
    /// other, and adds the bytes that it receives. `None` if the links were not measured.
    pub fn predict_gossip(&self, neighbours: usize, bytes: usize, hosts: &[usize]) -> Option<f64> {
        let link = if hosts.len() > 1 { self.remote } else { self.local };
        let bytes = bytes as f64;
        Some(neighbours as f64 * (link?.busy.step(bytes) + bytes * self.gamma))
    }

    pub(crate) fn of(&self, kind: Kind, algorithm: Algorithm, bytes: usize, hosts: &[usize]) -> Option<f64> {
        let ranks: usize = hosts.iter().sum();
        if ranks <= 1 {
            return Some(0.0);
        }
        if !algorithm.offers(kind) {
            return None;
        }
        let link = if hosts.len() > 1 { self.remote } else { self.local };
        let (n, bytes) = (ranks as f64, bytes as f64);
        if algorithm == Algorithm::Direct {
            let link = self.direct.filter(|_| hosts.len() == 1)?;
            // An all-reduce moves the others' parts in and the results out; other operations move half of that.
            let ways = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
            return Some(link.alpha + ways * (n - 1.0) / n * bytes * link.beta);
        }
        let flat = CostTerms { link: link?, gamma: self.gamma, n, bytes };
        let (logs, reduced) = (flat.log(), bytes * self.gamma);
        Some(match (algorithm, kind) {
            (Algorithm::Ring | Algorithm::PushPull, Kind::AllReduce) => flat.ring(),
            (Algorithm::Ring | Algorithm::PushPull, Kind::ReduceScatter) => flat.ring_scatter(),
            (Algorithm::Ring | Algorithm::PushPull, Kind::AllGather) => flat.ring_gather(),
            // The last rank has the first piece after n − 1 messages, and then one more with each.
            (Algorithm::Ring, Kind::Broadcast) => {
                let pieces = messages(bytes);
                (n - 2.0 + pieces) * flat.link.busy.step(bytes / pieces)
            }
            (Algorithm::Ring, Kind::Reduce) => flat.ring_scatter() + flat.ring_gather(),
            (Algorithm::Tree, Kind::AllReduce) => 2.0 * flat.tree() + logs * reduced,
            (Algorithm::Tree, Kind::Broadcast) => flat.tree(),
            (Algorithm::Tree, Kind::Reduce) => flat.tree() + logs * reduced,
            (Algorithm::HalvingDoubling, Kind::AllReduce) => flat.halving(),
            (Algorithm::HalvingDoubling, Kind::ReduceScatter) if ranks.is_power_of_two() => {
                flat.halving_gather() + (n - 1.0) / n * reduced
            }
            (Algorithm::HalvingDoubling, Kind::AllGather) if ranks.is_power_of_two() => flat.halving_gather(),
            (Algorithm::SingleReducer, Kind::AllReduce) => 2.0 * flat.single() + (n - 1.0) * reduced,
            (Algorithm::SingleReducer, Kind::Broadcast) => flat.single(),
            (Algorithm::SingleReducer, Kind::Reduce) => flat.single() + (n - 1.0) * reduced,
            (Algorithm::Grid, Kind::AllReduce) => {
                let rows = grid::rows(ranks);
                let columns = ranks / rows;
                flat.among(columns, bytes).ring() + flat.among(rows, bytes / columns as f64).ring()
            }
            (Algorithm::Hierarchical, _) => self.hierarchical(kind, &flat, hosts)?,
            _ => return None,
        })
    }

    fn hierarchical(&self, kind: Kind, flat: &CostTerms, hosts: &[usize]) -> Option<f64> {
        let most = hosts.iter().copied().max().unwrap_or(1);
        let even = hosts.iter().all(|ranks| *ranks == most);
        let (n, bytes) = (most as f64, flat.bytes);
        // Inside a host, any operation takes a synchronisation and the others' share of the bytes through memory.
        let meeting = |link: LinkCost| link.alpha + (n - 1.0) / n * bytes * link.beta;
        let messages = self.local.map(|link| CostTerms { link, ..*flat }.among(most, bytes));
        let inside = |by_messages: fn(&CostTerms) -> f64| match (most, self.direct, &messages) {
            (1, ..) => Some(0.0),
            (_, Some(link), _) => Some(meeting(link)),
            (_, None, Some(flat)) => Some(by_messages(flat)),
            _ => None,
        };
        // All ranks of a host share its link, so their parts together take as long as the whole.
        let across = flat.among(hosts.len(), bytes);
        let several = hosts.len() > 1;
        Some(match kind {
            Kind::AllReduce => {
                let down = inside(if even { CostTerms::ring_scatter } else { CostTerms::single })?;
                let up = inside(if even { CostTerms::ring_gather } else { CostTerms::single })?;
                down + up + if several { across.ring() } else { 0.0 }
            }
            _ => {
                let pieces = (bytes / PIECE as f64).ceil().max(1.0);
                let steps = (hosts.len() as f64 - 2.0 + pieces).max(0.0);
                let between = if several { steps * flat.link.busy.step(bytes / pieces) } else { 0.0 };
                between + inside(CostTerms::single)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn link(alpha: f64, beta: f64) -> LinkCosts {
        LinkCosts { busy: LinkCost { alpha, beta }, alone: LinkCost { alpha, beta } }
    }

    const MODEL: CostModel = CostModel {
        direct: Some(LinkCost { alpha: 1e-6, beta: 1e-10 }),
        local: Some(link(1e-5, 1e-10)),
        remote: Some(link(1e-4, 1e-8)),
        gamma: 1e-10,
    };

    fn best(bytes: usize, hosts: &[usize]) -> Algorithm {
        let model = CostModel { direct: None, ..MODEL };
        let time = |algorithm: &Algorithm| {
            model.of(Kind::AllReduce, *algorithm, bytes, hosts).unwrap_or(f64::INFINITY)
        };
        let all = Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Auto && *a != Algorithm::Direct);
        all.min_by(|a, b| time(a).total_cmp(&time(b))).expect("there are some")
    }

    #[test]
    fn formulas_give_the_published_values() {
        let (n, bytes) = (4.0, 64_000.0);
        let ring = 2.0 * (n - 1.0) * (1e-5 + bytes / n * 1e-10) + (n - 1.0) / n * bytes * 1e-10;
        let found = MODEL.of(Kind::AllReduce, Algorithm::Ring, 64_000, &[4]).expect("measured");
        assert!((found - ring).abs() < 1e-12, "{found} {ring}");
        let tree = 2.0 * (2.0 * (1e-5 + bytes * 1e-10) + bytes * 1e-10);
        let found = MODEL.of(Kind::AllReduce, Algorithm::Tree, 64_000, &[4]).expect("measured");
        assert!((found - tree).abs() < 1e-12, "{found} {tree}");
        assert_eq!(MODEL.of(Kind::Gather, Algorithm::Tree, 8, &[4]), None);
        assert_eq!(MODEL.of(Kind::AllReduce, Algorithm::Direct, 8, &[2, 2]), None);
        assert_eq!(MODEL.predict("all-reduce", Algorithm::Ring, 64, &[1]), Some(0.0));
    }

    #[test]
    fn small_buffers_prefer_few_steps_and_large_ones_few_bytes() {
        assert_eq!(best(64, &[16]), Algorithm::HalvingDoubling);
        assert!([Algorithm::Tree, Algorithm::HalvingDoubling].contains(&best(4, &[11])));
        assert!([Algorithm::Ring, Algorithm::PushPull, Algorithm::Grid].contains(&best(64 << 20, &[9])));
        // Between hosts a byte costs a hundred times as much.
        assert_eq!(best(1 << 20, &[8, 8]), Algorithm::Hierarchical);
    }
}
