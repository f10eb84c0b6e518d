//! How long a step takes: computing, as it was measured on one rank, and what it does not hide of communication, by formula.
//!
//! A network's gradients are reduced in flat parameters, from the last to the first, one after the other, on a thread beside
//! backward. Of `K` flat parameters the `k`-th is taken to be ready after `k/K` of backward. So the reduction of one starts when
//! it is ready and the one before is reduced; a step ends when backward is over and the last is reduced, and what is left to
//! send after the update has been sent. What an operation takes is the cost model's ([`CostModel`]). Ranks that compute for
//! different times, and work of the processor for communication besides reducing, are not in it.

use phalanx_collectives::{Algorithm, CostModel};

use crate::plan::MemoryPlan;
use crate::strategy::{Layout, ShardAxis, Synchrony};

/// What one rank computes in a step with its share of the batch, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Computing {
    /// Up to the loss.
    pub forward: f64,
    /// From the loss to the last gradient.
    pub backward: f64,
    /// Changing the parameters.
    pub update: f64,
}

impl Computing {
    /// That of a step of which no more is known than how long it took: backward is twice the work of forward, as each product of
    /// forward has two in backward, and the update is next to nothing.
    pub fn of_step(seconds: f64) -> Self {
        Self { forward: seconds / 3.0, backward: 2.0 * seconds / 3.0, update: 0.0 }
    }

    fn times(self, part: f64) -> Self {
        Self { forward: part * self.forward, backward: part * self.backward, update: part * self.update }
    }
}

/// The ranks, and how they reach each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reach<'a> {
    /// What messages cost.
    pub costs: &'a CostModel,
    /// Ranks on each host.
    pub hosts: &'a [usize],
    /// Which way operations go.
    pub algorithm: Algorithm,
    /// Whether operations run beside computing.
    pub overlaps: bool,
}

/// What a step takes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    /// All of it.
    pub whole: f64,
    /// Communication, hidden or not.
    pub communication: f64,
    /// Communication that is waited for.
    pub exposed: f64,
}

impl Reach<'_> {
    /// What an operation over so many bytes takes, by the algorithm or the best of those that there are.
    fn seconds(&self, operation: &str, bytes: u64) -> Option<f64> {
        let of = |algorithm| self.costs.predict(operation, algorithm, bytes as usize, self.hosts);
        let best = || {
            let all = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Auto);
            all.filter_map(of).min_by(f64::total_cmp)
        };
        // What has no such way goes by another.
        if self.algorithm == Algorithm::Auto { best() } else { of(self.algorithm).or_else(best) }
    }

    fn all(&self, operation: &str, bytes: &[u64]) -> Option<Vec<f64>> {
        bytes.iter().map(|bytes| self.seconds(operation, *bytes)).collect()
    }
}

impl MemoryPlan {
    /// What a step takes if one rank computes so long for its share of the batch. Of several networks each has an even part of
    /// that, one after the other. `None` for strategies with a leader, with groups, or whose ranks do not take every step
    /// together, and if the costs of links are not known.
    pub fn step_time(&self, computing: Computing, reach: &Reach<'_>) -> Option<StepTime> {
        let layout = self.strategy.layout;
        let led = [layout.parameters, layout.gradients, layout.optimizer].contains(&Layout::Leader);
        if led || self.strategy.axis != ShardAxis::World || self.strategy.synchrony != Synchrony::EveryStep {
            return None;
        }
        let networks = self.buckets.iter().zip(&self.kept).filter(|(buckets, _)| !buckets.is_empty());
        let networks: Vec<_> = networks.collect();
        let part = computing.times(1.0 / networks.len().max(1) as f64);
        networks.iter().try_fold(StepTime::default(), |sum, (buckets, kept)| {
            let time = self.network_time((&buckets[..], **kept), part, reach)?;
            Some(StepTime {
                whole: sum.whole + time.whole,
                communication: sum.communication + time.communication,
                exposed: sum.exposed + time.exposed,
            })
        })
    }

    /// What a network takes whose learnt flat parameters have so many bytes, in the order of forward; of which so many from the last
    /// stay gathered for backward.
    fn network_time(
        &self,
        (buckets, kept): (&[u64], usize),
        computing: Computing,
        reach: &Reach<'_>,
    ) -> Option<StepTime> {
        let layout = self.strategy.layout;
        let reduced = reach.all(if layout.scatters() { "reduce-scatter" } else { "all-reduce" }, buckets)?;
        let gathered = match layout.optimizer {
            Layout::Sharded => reach.all("all-gather", buckets)?,
            _ => vec![0.0; buckets.len()],
        };
        let count = buckets.len() as f64;
        let gathers = layout.parameters == Layout::Sharded;
        let own = computing.forward + computing.backward + computing.update;
        let again = if gathers { buckets.len().saturating_sub(kept) } else { 0 };
        let communication = reduced.iter().chain(&gathered).chain(&gathered[..again]).sum();
        if !reach.overlaps {
            let whole = own + communication;
            return Some(StepTime { whole, communication, exposed: communication });
        }
        // Two threads: when each is done with what it has begun.
        let (mut computes, mut sends) = (0.0_f64, 0.0_f64);
        // A gather is begun when the block before its own is entered, and the own one is waited for.
        let gather = |sends: &mut f64, now: f64, seconds: Option<&f64>| {
            seconds.map_or(0.0, |seconds| {
                *sends = sends.max(now) + seconds;
                *sends
            })
        };
        if gathers {
            let mut ahead = gathered.iter();
            let mut there = gather(&mut sends, computes, ahead.next());
            for _ in &gathered {
                let next = gather(&mut sends, computes, ahead.next());
                computes = computes.max(there) + computing.forward / count;
                there = next;
            }
        } else {
            computes += computing.forward;
        }
        let mut ahead = gathered[..again].iter().rev();
        let mut there = if again == buckets.len() { gather(&mut sends, computes, ahead.next()) } else { 0.0 };
        for (at, reduce) in reduced.iter().enumerate().rev() {
            let next = if at <= again { gather(&mut sends, computes, ahead.next()) } else { 0.0 };
            computes = computes.max(there) + computing.backward / count;
            there = next;
            sends = sends.max(computes) + reduce;
        }
        let mut whole = computes.max(sends) + computing.update;
        if !gathers {
            // Every rank has updated its part, and the others lack it.
            whole += gathered.iter().sum::<f64>();
        }
        Some(StepTime { whole, communication, exposed: whole - own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Workload;
    use crate::strategy::Strategy;
    use phalanx_collectives::{LinkCost, LinkCosts};

    /// A model of four flat parameters of a megabyte.
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

    fn time(strategy: &str, seconds: f64, overlaps: bool) -> StepTime {
        let costs = costs(0.0, 1e8);
        let reach = Reach { costs: &costs, hosts: &[4], algorithm: Algorithm::Ring, overlaps };
        plan(strategy).step_time(Computing::of_step(seconds), &reach).expect("known")
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
        let reach = Reach { costs: &costs, hosts: &[4], algorithm: Algorithm::Auto, overlaps: true };
        for other in ["dp", "hsdp", "ps-asp", "local-sgd"] {
            assert_eq!(plan(other).step_time(Computing::of_step(1.0), &reach), None, "{other}");
        }
    }

    #[test]
    fn several_networks_compute_one_after_the_other() {
        let costs = costs(0.0, 1e8);
        let reach = Reach { costs: &costs, hosts: &[4], algorithm: Algorithm::Ring, overlaps: true };
        let two = MemoryPlan {
            buckets: vec![vec![1_000_000; 4], vec![1_000_000; 4], Vec::new()],
            kept: vec![2; 3],
            ..plan("ddp")
        };
        let time = two.step_time(Computing::of_step(6.0), &reach).expect("known");
        assert!((time.whole - 6.0 - 2.0 * 0.015).abs() < 1e-9, "{time:?}");
    }
}
