//! Rehearsals: operations played through without sending a byte, which tell when each rank is done under a cost model.
//!
//! Formulas ([`CostModel::predict`]) give the duration of one operation that all ranks begin together. If ranks do different
//! things, that does not give the duration of a training step: a reducer's wires carry the results of one operation while the
//! gradients of the next arrive, and ranks that are served first begin first. So the algorithms themselves list the messages of
//! every rank in order, and messages occupy the wires of sender and receiver as on simulated links
//! ([`SimulatedLink`](crate::SimulatedLink)). A rank's bytes leave one after the other, arrive a latency later, and are received
//! one after the other. Reducing received bytes takes γ per byte; nothing else takes time.

mod script;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::algorithms::cost::{CostModel, LinkCost};
use crate::operation::{Algorithm, Kind};
use crate::simulated::Wire;
use script::{Move, record};

/// The key of a recorded operation: its kind, algorithm, bytes, and the host of each rank.
type OperationKey = (&'static str, &'static str, usize, Vec<usize>);

/// A world in which operations are played through. It remembers when wires are occupied, so operations may follow each other and
/// overlap.
///
/// ```
/// use phalanx_collectives::{Algorithm, CostModel, Rehearsal, SimulatedLink};
///
/// let link: SimulatedLink = "8Mbit,0us".parse().expect("a link");
/// let costs = CostModel { gamma: 0.0, ..CostModel::over(&link) };
/// let mut world = Rehearsal::new(&costs, &[3]).expect("its links are known");
/// // A kilobyte takes a millisecond on a wire: two arrive at the reducer and leave again, one after the other.
/// let ends = world.play("all-reduce", Algorithm::SingleReducer, 1000, &[0, 1, 2], &[0.0; 3]).expect("by messages");
/// let ms: Vec<f64> = ends.iter().map(|end| (end * 1e3).round()).collect();
/// assert_eq!(ms, [2.0, 3.0, 4.0]);
/// ```
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// The host of each rank.
    hosts: Vec<usize>,
    /// Links inside hosts and between them.
    links: [Option<LinkCost>; 2],
    gamma: f64,
    /// The outgoing and incoming wires of each rank, inside its host and to others.
    wires: Vec<[[Wire; 2]; 2]>,
    scripts: BTreeMap<OperationKey, Option<Arc<Vec<Vec<Move>>>>>,
}

/// The progress of an operation, by member.
struct Progress {
    /// The time of each member, in nanoseconds.
    at: Vec<u64>,
    /// The index of each member's next move in its script.
    next: Vec<usize>,
    /// The departure times of messages under way, by sender and receiver.
    under_way: BTreeMap<(usize, usize), VecDeque<u64>>,
}

/// Converts seconds to nanoseconds.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round().max(0.0) as u64
}

impl Rehearsal {
    /// A world with these numbers of ranks on its hosts. Links have the costs measured while all ranks send. `None` if one of them
    /// was not measured.
    pub fn new(costs: &CostModel, hosts: &[usize]) -> Option<Self> {
        let hosts: Vec<usize> =
            hosts.iter().enumerate().flat_map(|(host, ranks)| std::iter::repeat_n(host, *ranks)).collect();
        let links = [costs.local, costs.remote].map(|link| link.map(|link| link.busy));
        let needed = |between: usize| match between {
            0 => hosts.windows(2).any(|pair| pair[0] == pair[1]),
            _ => hosts.windows(2).any(|pair| pair[0] != pair[1]),
        };
        if (0..2).any(|between| needed(between) && links[between].is_none()) {
            return None;
        }
        let wires = hosts.iter().map(|_| Default::default()).collect();
        Some(Self { hosts, links, gamma: costs.gamma, wires, scripts: BTreeMap::new() })
    }

    /// Plays an operation over `bytes` bytes among some ranks, the first of which is the root. Each begins it at its time in
    /// seconds; returns when each is done. `None` if the algorithm does not have the operation or sends no messages. The bytes of a
    /// `scatter` are those of all parts. A rank's operations must be played in the order in which it begins them.
    pub fn play(
        &mut self,
        operation: &str,
        algorithm: Algorithm,
        bytes: u64,
        members: &[usize],
        from: &[f64],
    ) -> Option<Vec<f64>> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == operation)?;
        let scripts = self.scripts(kind, algorithm, bytes as usize, members)?;
        let mut progress = Progress {
            at: from.iter().map(|seconds| nanos(*seconds)).collect(),
            next: vec![0; members.len()],
            under_way: BTreeMap::new(),
        };
        let mut moved = true;
        while moved {
            moved = false;
            for own in 0..members.len() {
                moved |= self.advance(own, members, &scripts[own], &mut progress)?;
            }
        }
        let Progress { at, next, .. } = progress;
        let all_done = next.iter().zip(scripts.iter()).all(|(next, script)| *next == script.len());
        all_done.then(|| at.iter().map(|nanos| *nanos as f64 * 1e-9).collect())
    }

    /// Plays the moves of member `own` up to the first message that was not sent yet. Returns true if it made a move; `None` if
    /// the cost of a link is unknown.
    fn advance(
        &mut self,
        own: usize,
        members: &[usize],
        script: &[Move],
        Progress { at, next, under_way }: &mut Progress,
    ) -> Option<bool> {
        let first = next[own];
        while let Some(step) = script.get(next[own]) {
            match *step {
                Move::Send { to, bytes } => {
                    let left = self.leave(members[own], members[to], bytes, at[own])?;
                    under_way.entry((own, to)).or_default().push_back(left);
                }
                Move::Receive { from, bytes, reduces } => {
                    let message = under_way.get_mut(&(from, own)).and_then(VecDeque::pop_front);
                    let Some(left) = message else { break };
                    let here = self.arrive(members[from], members[own], bytes, left)?;
                    at[own] = at[own].max(here);
                    at[own] += if reduces { nanos(bytes as f64 * self.gamma) } else { 0 };
                }
            }
            next[own] += 1;
        }
        Some(next[own] > first)
    }

    /// Returns the script of each rank in an operation.
    fn scripts(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        bytes: usize,
        members: &[usize],
    ) -> Option<Arc<Vec<Vec<Move>>>> {
        let hosts: Vec<usize> = members.iter().map(|rank| self.hosts[*rank]).collect();
        // Hosts of a part of the world are numbered from 0.
        let mut known: Vec<usize> = Vec::new();
        let hosts: Vec<usize> = hosts
            .iter()
            .map(|host| {
                known.iter().position(|other| other == host).unwrap_or_else(|| {
                    known.push(*host);
                    known.len() - 1
                })
            })
            .collect();
        let scene = (kind.name(), algorithm.name(), bytes, hosts.clone());
        let recorded = || {
            let all = (0..members.len()).map(|rank| record(kind, algorithm, bytes, rank, &hosts));
            all.collect::<Option<Vec<_>>>().map(Arc::new)
        };
        self.scripts.entry(scene).or_insert_with(recorded).clone()
    }

    /// Returns the link of two ranks (0 inside a host, 1 between hosts) and its cost.
    fn link(&self, a: usize, b: usize) -> Option<(usize, LinkCost)> {
        let between = usize::from(self.hosts[a] != self.hosts[b]);
        Some((between, self.links[between]?))
    }

    /// Returns the time when the last byte of a message leaves its sender.
    fn leave(&mut self, own: usize, to: usize, bytes: usize, now: u64) -> Option<u64> {
        let (between, link) = self.link(own, to)?;
        Some(self.wires[own][between][0].occupy(now, nanos(bytes as f64 * link.beta)))
    }

    /// Returns the time when the last byte of a message is at its receiver.
    fn arrive(&mut self, from: usize, own: usize, bytes: usize, left: u64) -> Option<u64> {
        let (between, link) = self.link(from, own)?;
        let length = nanos(bytes as f64 * link.beta);
        let first = (left + nanos(link.alpha)).saturating_sub(length);
        Some(self.wires[own][between][1].occupy(first, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::cost::LinkCosts;

    /// A megabyte per second and a latency of a millisecond; between hosts a tenth of that bandwidth.
    fn costs() -> CostModel {
        let link = |beta| {
            let cost = LinkCost { alpha: 1e-3, beta };
            Some(LinkCosts { busy: cost, alone: cost })
        };
        CostModel { direct: None, local: link(1e-6), remote: link(1e-5), gamma: 1e-9 }
    }

    fn play(world: &mut Rehearsal, algorithm: Algorithm, from: &[f64]) -> Vec<f64> {
        let members: Vec<usize> = (0..from.len()).collect();
        world.play("all-reduce", algorithm, 12_000, &members, from).expect("by messages")
    }

    #[test]
    fn where_all_begin_together_a_ring_takes_what_the_formula_says() {
        for ranks in [2, 3, 4, 6] {
            for algorithm in [Algorithm::Ring, Algorithm::PushPull] {
                let mut world = Rehearsal::new(&costs(), &[ranks]).expect("known");
                let ends = play(&mut world, algorithm, &vec![0.5; ranks]);
                let formula = costs().of(Kind::AllReduce, algorithm, 12_000, &[ranks]).expect("known");
                let slack = if algorithm == Algorithm::Ring { 1e-6 } else { 0.5 * formula };
                for end in ends {
                    assert!((end - 0.5 - formula).abs() <= slack, "{algorithm} {ranks}: {end}, {formula}");
                }
            }
        }
    }

    #[test]
    fn a_reducer_sends_one_result_while_the_next_gradients_come_in() {
        let (ranks, wire, computing) = (4_usize, 12e-3, 5e-3);
        let mut world = Rehearsal::new(&costs(), &[ranks]).expect("known");
        let mut at = vec![0.0; ranks];
        let mut ends = Vec::new();
        for _ in 0..6 {
            let from: Vec<f64> = at.iter().map(|end| end + computing).collect();
            at = play(&mut world, Algorithm::SingleReducer, &from);
            ends.push(at[0]);
        }
        // The first rank takes its formula up to the root; each further one takes n wires, reducing, and two latencies.
        let first = computing + 3.0 * wire + 1e-3;
        assert!((ends[0] - first).abs() < 1e-4, "{ends:?}");
        let steady = ranks as f64 * wire + computing + 2e-3;
        let found = ends[5] - ends[4];
        assert!((found - steady).abs() < 2e-4, "{found}, by hand {steady}");
        let formula = costs().of(Kind::AllReduce, Algorithm::SingleReducer, 12_000, &[ranks]).expect("known");
        assert!(formula + computing > 1.2 * found, "the formula of one operation is too long: {formula}");
    }

    #[test]
    fn links_between_hosts_are_apart_from_those_inside() {
        let mut world = Rehearsal::new(&costs(), &[2, 2]).expect("known");
        let ends = play(&mut world, Algorithm::Hierarchical, &[0.0; 4]);
        // Half of it inside, a quarter each way between hosts, half of it inside.
        let inside = 1e-3 + 6000.0 * 1e-6;
        let between = 2.0 * (1e-3 + 3000.0 * 1e-5);
        for end in ends {
            assert!((end - 2.0 * inside - between).abs() < 1e-4, "{end}");
        }
        // Some of the ranks, with the third as the root.
        let from = [0.0, 0.0];
        let ends =
            world.play("broadcast", Algorithm::SingleReducer, 1000, &[2, 3], &from).expect("by messages");
        assert!(ends[0] < ends[1] && ends[1] < 0.1, "{ends:?}");
        assert_eq!(world.play("all-reduce", Algorithm::Direct, 8, &[0, 1], &from), None);
        assert_eq!(world.play("all-reduced", Algorithm::Ring, 8, &[0, 1], &from), None);
        let unknown = CostModel { remote: None, ..costs() };
        assert!(Rehearsal::new(&unknown, &[2, 2]).is_none() && Rehearsal::new(&unknown, &[4]).is_some());
    }
}
