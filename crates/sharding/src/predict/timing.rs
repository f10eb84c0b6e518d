//! Predicted time of a step: measured computing of one rank, and the part of communication that it does not hide, by formula.
//!
//! Gradients are reduced in buckets, from the last to the first, by a background thread during backward. Of `K` buckets the
//! `k`-th is taken to be ready after `k/K` of backward. Its reduction starts when it is ready and the one before is reduced. A
//! step ends when backward is over, the last bucket is reduced, and the messages after the update are sent. The cost model
//! gives the time of an operation ([`CostModel`]). Where ranks do different work (a single reducer, a tree, hosts, a root),
//! steps are simulated ([`Rehearsal`]) until each takes as long as the one before. Ranks with different computing times are not
//! modelled, nor is CPU work for communication besides reducing.

mod rehearsed;

use std::collections::VecDeque;

use phalanx_collectives::{Algorithm, CostModel};

use crate::predict::plan::MemoryPlan;
use crate::strategy::{Partition, Synchrony};

/// The compute times of one rank in a step with its part of the batch, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComputeTimes {
    /// Forward, up to the loss.
    pub forward: f64,
    /// Backward, from the loss to the last gradient.
    pub backward: f64,
    /// The update of the parameters.
    pub update: f64,
}

impl ComputeTimes {
    /// Returns the times of a step of which only the total is known. Backward is twice the work of forward, as each product
    /// of forward has two in backward; the update takes no time.
    pub fn of_step(seconds: f64) -> Self {
        Self { forward: seconds / 3.0, backward: 2.0 * seconds / 3.0, update: 0.0 }
    }

    /// Returns the times of a part of the batch, given steps of one rank with several batches: images and seconds. Between
    /// two measured batches a step grows linearly with the images; work that does not grow with them, such as updates, is
    /// the same for every part. With one measured step all work grows with the images. `None` without steps, or with none
    /// that takes time.
    pub fn of_share(measured: &[(f64, f64)], share: f64) -> Option<Self> {
        let mut known: Vec<(f64, f64)> =
            measured.iter().copied().filter(|(images, seconds)| *images > 0.0 && *seconds > 0.0).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        known.dedup_by(|next, last| next.0 == last.0);
        let above = known.partition_point(|(images, _)| *images < share).clamp(1, known.len().max(2) - 1);
        let seconds = match known.as_slice() {
            [] => return None,
            [(images, seconds)] => seconds * share / images,
            known => {
                let ((few, short), (many, long)) = (known[above - 1], known[above]);
                let each = (long - short) / (many - few);
                // Times that do not grow are noise, and fixed work is never negative.
                let fixed = (short - each * few).max(0.0);
                if each > 0.0 { fixed + each * share } else { long * share / many }
            }
        };
        Some(Self::of_step(seconds))
    }

    fn times(self, part: f64) -> Self {
        Self { forward: part * self.forward, backward: part * self.backward, update: part * self.update }
    }
}

/// The ranks, their hosts, and the cost of communication.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterModel<'a> {
    /// The cost model of messages.
    pub costs: &'a CostModel,
    /// Ranks on each host.
    pub hosts: &'a [usize],
    /// The algorithm of collectives.
    pub algorithm: Algorithm,
    /// True if operations overlap with computing.
    pub overlaps: bool,
    /// Bytes of all ranks' images, if a leader reads and scatters them in every step; otherwise 0.
    pub scattered: u64,
}

/// The time of a step, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    /// The whole step.
    pub whole: f64,
    /// Communication, hidden or not.
    pub communication: f64,
    /// Communication that is not hidden behind compute.
    pub exposed: f64,
}

impl ClusterModel<'_> {
    /// Returns the seconds of an operation over `bytes` bytes among ranks on these hosts, by the chosen algorithm or the
    /// best one.
    fn seconds(&self, operation: &str, bytes: u64, hosts: &[usize]) -> Option<f64> {
        let of = |algorithm| self.costs.predict(operation, algorithm, bytes as usize, hosts);
        let best = || {
            let all = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Auto);
            all.filter_map(of).min_by(f64::total_cmp)
        };
        // Operations without this algorithm use the best one.
        if self.algorithm == Algorithm::Auto { best() } else { of(self.algorithm).or_else(best) }
    }

    fn all(&self, operation: &str, bytes: &[u64], hosts: &[usize]) -> Option<Vec<f64>> {
        bytes.iter().map(|bytes| self.seconds(operation, *bytes, hosts)).collect()
    }

    /// The number of ranks.
    fn ranks(&self) -> usize {
        self.hosts.iter().sum()
    }

    /// Returns the number of ranks on each host, of `count` ranks that are `apart` apart, from the first: a group, or the
    /// ranks of one place in all groups.
    fn hosts_of(&self, count: usize, apart: usize) -> Vec<usize> {
        let host = |rank: usize| {
            let mut first = 0;
            self.hosts.iter().position(|ranks| {
                first += ranks;
                rank < first
            })
        };
        let on: Vec<_> = (0..count).map(|place| host(place * apart)).collect();
        on.chunk_by(|a, b| a == b).map(<[_]>::len).collect()
    }

    /// True if all ranks do the same work in the algorithm's operations, so that one stands for all.
    fn is_even(&self) -> bool {
        match self.algorithm {
            Algorithm::SingleReducer | Algorithm::Tree | Algorithm::Hierarchical => false,
            Algorithm::HalvingDoubling => self.ranks().is_power_of_two(),
            _ => true,
        }
    }
}

/// The seconds of a network's collectives if all ranks do the same work, by bucket in the order of forward.
struct Operations {
    reduced: Vec<f64>,
    /// The operations between groups that follow; empty without groups.
    crossed: Vec<f64>,
    gathered: Vec<f64>,
    /// True if operations inside of groups and between them use the same links.
    share_wires: bool,
}

impl MemoryPlan {
    /// Returns the time of a step if one rank computes for these times on its part of the batch. Several networks share
    /// them evenly, one after the other. `None` for asynchronous strategies, for operations without messages where ranks do
    /// different work, and for unknown costs of links.
    pub fn step_time(&self, computing: ComputeTimes, cluster: &ClusterModel<'_>) -> Option<StepTime> {
        if self.strategy.synchrony != Synchrony::EveryStep
            || !cluster.ranks().is_multiple_of(self.shards.max(1))
        {
            return None;
        }
        let networks = self.buckets.iter().zip(&self.kept).filter(|(buckets, _)| !buckets.is_empty());
        let networks: Vec<_> = networks.collect();
        let part = computing.times(1.0 / networks.len().max(1) as f64);
        let layout = self.strategy.layout;
        let led = [layout.parameters, layout.gradients, layout.optimizer].contains(&Partition::Root);
        if cluster.ranks() > 1 && (led || !cluster.is_even()) {
            let buckets: Vec<&[u64]> = networks.iter().map(|(buckets, _)| &buckets[..]).collect();
            return rehearsed::step_time(&buckets, led, part, cluster);
        }
        networks.iter().try_fold(StepTime::default(), |sum, (buckets, kept)| {
            let time = self.network_time((&buckets[..], **kept), part, cluster)?;
            Some(StepTime {
                whole: sum.whole + time.whole,
                communication: sum.communication + time.communication,
                exposed: sum.exposed + time.exposed,
            })
        })
    }

    /// Returns the seconds of a network's operations.
    fn operations(&self, buckets: &[u64], cluster: &ClusterModel<'_>) -> Option<Operations> {
        let layout = self.strategy.layout;
        let grouped = self.strategy.data.has_groups();
        let (ranks, group) = (cluster.ranks(), if grouped { self.shards } else { cluster.ranks() });
        let inside = cluster.hosts_of(group, 1);
        let across = cluster.hosts_of(ranks / group.max(1), group);
        let reduces = if layout.scatters() { "reduce-scatter" } else { "all-reduce" };
        let gathered = match layout.optimizer {
            Partition::Sharded => cluster.all("all-gather", buckets, &inside)?,
            _ => vec![0.0; buckets.len()],
        };
        let shards: Vec<u64> = buckets.iter().map(|bytes| bytes / group.max(1) as u64).collect();
        let crossed = if across.iter().sum::<usize>() > 1 && grouped {
            cluster.all("all-reduce", &shards, &across)?
        } else {
            Vec::new()
        };
        let share_wires = (inside.len() > 1) == (across.len() > 1);
        Some(Operations { reduced: cluster.all(reduces, buckets, &inside)?, crossed, gathered, share_wires })
    }

    /// Returns the time of a network whose trained buckets have these bytes, in the order of forward. The last `kept` of
    /// them stay gathered for backward.
    fn network_time(
        &self,
        (buckets, kept): (&[u64], usize),
        computing: ComputeTimes,
        cluster: &ClusterModel<'_>,
    ) -> Option<StepTime> {
        let layout = self.strategy.layout;
        let operations = self.operations(buckets, cluster)?;
        let Operations { reduced, crossed, gathered, .. } = &operations;
        let count = buckets.len() as f64;
        let gathers = layout.parameters == Partition::Sharded;
        let own = computing.forward + computing.backward + computing.update;
        let again = if gathers { buckets.len().saturating_sub(kept) } else { 0 };
        let communication = reduced.iter().chain(crossed).chain(gathered).chain(&gathered[..again]).sum();
        if !cluster.overlaps {
            let whole = own + communication;
            return Some(StepTime { whole, communication, exposed: communication });
        }
        let mut timeline = Timeline::new(&operations);
        if gathers {
            timeline.forward(computing.forward / count);
        } else {
            timeline.computes += computing.forward;
        }
        timeline.backward(computing.backward / count, again);
        let mut whole = timeline.end() + computing.update;
        if !gathers {
            // Every rank has updated its part, which the others gather.
            whole += gathered.iter().sum::<f64>();
        }
        Some(StepTime { whole, communication, exposed: whole - own })
    }
}

/// The progress of a step on two threads, in seconds since its start: one computes, the other one sends.
struct Timeline<'a> {
    operations: &'a Operations,
    /// The end of the computation so far.
    computes: f64,
    /// The end of the operations inside of groups so far.
    sends: f64,
    /// The end of the operations between groups so far.
    crosses: f64,
    /// The buckets that are reduced inside of groups but not between them yet, with the end of that reduction.
    waiting: VecDeque<(usize, f64)>,
}

impl<'a> Timeline<'a> {
    fn new(operations: &'a Operations) -> Self {
        Self { operations, computes: 0.0, sends: 0.0, crosses: 0.0, waiting: VecDeque::new() }
    }

    /// Begins to gather a bucket now and returns the end, or 0 without a bucket.
    fn gather(&mut self, seconds: Option<&f64>) -> f64 {
        seconds.map_or(0.0, |seconds| {
            self.sends = self.sends.max(self.computes) + seconds;
            self.sends
        })
    }

    /// Adds a forward pass that gathers each bucket one block ahead. A block computes for `block` seconds.
    fn forward(&mut self, block: f64) {
        let mut ahead = self.operations.gathered.iter();
        let mut there = self.gather(ahead.next());
        for _ in &self.operations.gathered {
            let next = self.gather(ahead.next());
            self.computes = self.computes.max(there) + block;
            there = next;
        }
    }

    /// Adds a backward pass that gathers the first `again` buckets again, one block ahead, and reduces all. A block computes for
    /// `block` seconds.
    fn backward(&mut self, block: f64, again: usize) {
        let Operations { reduced, crossed, gathered, .. } = self.operations;
        let mut ahead = gathered[..again].iter().rev();
        let mut there = if again == reduced.len() { self.gather(ahead.next()) } else { 0.0 };
        for (at, reduce) in reduced.iter().enumerate().rev() {
            let next = if at <= again { self.gather(ahead.next()) } else { 0.0 };
            self.computes = self.computes.max(there) + block;
            there = next;
            self.sends = self.sends.max(self.computes) + reduce;
            if !crossed.is_empty() {
                self.waiting.push_back((at, self.sends));
                // Backward waits for the oldest of more than one, so that all ranks issue the same operations.
                self.cross(1);
            }
        }
    }

    /// Reduces the waiting buckets between groups until `leave` are left.
    fn cross(&mut self, leave: usize) {
        let Operations { crossed, share_wires, .. } = self.operations;
        while self.waiting.len() > leave {
            let Some((at, over)) = self.waiting.pop_front() else { break };
            self.computes = self.computes.max(over);
            let free = if *share_wires { self.sends } else { 0.0 };
            self.crosses = self.crosses.max(self.computes).max(free) + crossed[at];
            self.sends = if *share_wires { self.crosses } else { self.sends };
        }
    }

    /// Returns the end of everything.
    fn end(mut self) -> f64 {
        self.cross(0);
        self.computes.max(self.sends).max(self.crosses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::plan::Workload;
    use crate::strategy::Strategy;
    use phalanx_collectives::{LinkCost, LinkCosts};

    /// A model of four buckets of a megabyte.
    fn plan(strategy: &str) -> MemoryPlan {
        let strategy = Strategy::named(strategy).expect("known");
        let workload = Workload { ranks: 4, ..Workload::default() };
        MemoryPlan {
            buckets: vec![vec![1_000_000; 4]],
            kept: vec![2],
            ..MemoryPlan::new(&[], strategy, &workload).expect("fits")
        }
    }

    fn costs(alpha: f64, bandwidth: f64) -> CostModel {
        let cost = LinkCost { alpha, beta: 1.0 / bandwidth };
        let link = Some(LinkCosts { busy: cost, alone: cost });
        CostModel { direct: None, local: link, remote: link, gamma: 0.0 }
    }

    fn ring<'a>(costs: &'a CostModel, hosts: &'a [usize]) -> ClusterModel<'a> {
        ClusterModel { costs, hosts, algorithm: Algorithm::Ring, overlaps: true, scattered: 0 }
    }

    fn time(strategy: &str, seconds: f64, overlaps: bool) -> StepTime {
        let costs = costs(0.0, 1e8);
        let cluster = ClusterModel { overlaps, ..ring(&costs, &[4]) };
        plan(strategy).step_time(ComputeTimes::of_step(seconds), &cluster).expect("known")
    }

    #[test]
    fn communication_hides_behind_backward_as_far_as_that_goes() {
        // By ring a megabyte among four takes 2 · 3/4 · 10 ms.
        let one = 0.015;
        let long = time("ddp", 3.0, true);
        assert!((long.whole - 3.0 - one).abs() < 1e-9, "only the first block's is left: {long:?}");
        assert!((long.communication - 4.0 * one).abs() < 1e-9 && (long.exposed - one).abs() < 1e-9);
        let short = time("ddp", 0.003, true);
        // It begins when the last block's gradients are ready, after 1/3 and a quarter of 2/3.
        assert!((short.whole - 0.0015 - 4.0 * one).abs() < 1e-9, "{short:?}");
        let apart = time("ddp", 3.0, false);
        assert!((apart.whole - 3.0 - 4.0 * one).abs() < 1e-9 && (apart.exposed - 4.0 * one).abs() < 1e-9);
    }

    #[test]
    fn strategies_that_shard_send_what_they_gather() {
        let half = 0.0075;
        let zero2 = time("zero2", 3.0, true);
        assert!(
            (zero2.whole - 3.0 - half - 4.0 * half).abs() < 1e-9,
            "all is gathered at the end: {zero2:?}"
        );
        let fsdp = time("fsdp", 3.0, true);
        assert!((fsdp.communication - 10.0 * half).abs() < 1e-9, "two of four stay for backward: {fsdp:?}");
        // The first gather has nothing to hide behind, nor the last reduction.
        assert!((fsdp.exposed - 2.0 * half).abs() < 1e-9, "{fsdp:?}");
        // Backward of next to nothing waits for all that is sent, and forward has hidden nothing.
        let bare = time("fsdp", 1e-9, true);
        assert!((bare.whole - 10.0 * half).abs() < 1e-6, "{bare:?}");
        let costs = costs(0.0, 1e8);
        let cluster = ClusterModel { algorithm: Algorithm::Auto, ..ring(&costs, &[4]) };
        for other in ["ps-asp", "local-sgd", "d-psgd"] {
            assert_eq!(plan(other).step_time(ComputeTimes::of_step(1.0), &cluster), None, "{other}");
        }
    }

    #[test]
    fn several_networks_compute_one_after_the_other() {
        let costs = costs(0.0, 1e8);
        let cluster = ring(&costs, &[4]);
        let two = MemoryPlan {
            buckets: vec![vec![1_000_000; 4], vec![1_000_000; 4], Vec::new()],
            kept: vec![2; 3],
            ..plan("ddp")
        };
        let time = two.step_time(ComputeTimes::of_step(6.0), &cluster).expect("known");
        assert!((time.whole - 6.0 - 2.0 * 0.015).abs() < 1e-9, "{time:?}");
    }
    #[test]
    fn groups_reduce_inside_and_then_between() {
        let mut costs = costs(0.0, 1e8);
        let slow = LinkCost { alpha: 0.0, beta: 1e-7 };
        costs.remote = Some(LinkCosts { busy: slow, alone: slow });
        let plan = MemoryPlan { shards: 2, ..plan("hsdp") };
        // Half of a megabyte moves inside a host in 5 ms; its half is reduced between two hosts in 50 ms.
        let (inside, between) = (0.005, 0.05);
        let time = |hosts: &[usize]| {
            plan.step_time(ComputeTimes::of_step(1e-9), &ring(&costs, hosts)).expect("known")
        };
        let apart = time(&[2, 2]);
        // What goes between hosts takes longest; the first begins when its sum inside is there, behind four gathers.
        let first = 4.0 * inside;
        assert!(
            apart.whole >= 4.0 * between + inside && apart.whole <= 4.0 * between + first + 4.0 * inside,
            "{apart:?}"
        );
        let operations = 4.0 * (inside + between) + 4.0 * inside + 2.0 * inside;
        assert!((apart.communication - operations).abs() < 1e-9, "{apart:?}");
        // On one host all goes through one wire.
        let together = time(&[4]);
        assert!((together.whole - 4.0 * (inside + 0.005) - 6.0 * inside).abs() < 1e-6, "{together:?}");
        assert_eq!(ring(&costs, &[2, 2]).hosts_of(2, 2), [1, 1]);
        assert_eq!(ring(&costs, &[3, 1]).hosts_of(4, 1), [3, 1]);
    }

    #[test]
    fn what_does_not_grow_with_the_batch_is_told_from_two_batches() {
        let seconds = |measured: &[(f64, f64)], share: f64| {
            let ComputeTimes { forward, backward, update } = ComputeTimes::of_share(measured, share)?;
            Some(forward + backward + update)
        };
        let two = [(32.0, 0.034), (16.0, 0.018)];
        for (share, expected) in
            [(32.0, 0.034), (16.0, 0.018), (8.0, 0.010), (4.0, 0.006), (24.0, 0.026), (64.0, 0.066)]
        {
            let found = seconds(&two, share).expect("measured");
            assert!((found - expected).abs() < 1e-12, "{share}: {found}");
        }
        assert_eq!(seconds(&[(16.0, 0.016)], 8.0), Some(0.008), "of one all grows");
        // Noise: more images in less time.
        let noise = seconds(&[(16.0, 0.02), (32.0, 0.016)], 8.0).expect("measured");
        assert!((noise - 0.004).abs() < 1e-12, "{noise}");
        assert_eq!(seconds(&[], 8.0), None);
    }
}
