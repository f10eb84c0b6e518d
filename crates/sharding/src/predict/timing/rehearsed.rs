//! Simulates steps of ranks with different work until their duration is stable.

use phalanx_collectives::{Algorithm, Rehearsal};

use super::{ClusterModel, ComputeTimes, StepTime};

/// The number of simulated steps. The first half is warm-up.
const STEPS: usize = 8;

/// The times that each rank's two threads have reached.
struct Ranks {
    world: Rehearsal,
    all: Vec<usize>,
    /// The time at which each rank's training thread is free.
    computes: Vec<f64>,
    /// The time at which each rank's communication thread is free.
    sends: Vec<f64>,
    /// The seconds of operations, from the last rank's begin to the last rank's end.
    communication: f64,
}

impl Ranks {
    /// Advances the training threads of all ranks by compute time.
    fn compute(&mut self, seconds: f64) {
        self.computes.iter_mut().for_each(|at| *at += seconds);
    }

    /// Starts an operation on all ranks, after their compute and their previous operation.
    fn begin(&mut self, operation: &str, algorithm: Algorithm, bytes: u64) -> Option<()> {
        let from: Vec<f64> = self.computes.iter().zip(&self.sends).map(|(a, b)| a.max(*b)).collect();
        let latest = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let ends = self.world.play(operation, algorithm, bytes, &self.all, &from)?;
        self.communication += latest(&ends) - latest(&from);
        self.sends = ends;
        Some(())
    }

    /// Waits on all ranks for the operations that were started.
    fn wait(&mut self) {
        self.computes.iter_mut().zip(&self.sends).for_each(|(at, sent)| *at = at.max(*sent));
    }
}

/// Returns the time of a step of networks that run one after the other, each with these computing times and with
/// buckets of these bytes in the order of forward. If ranks are `led`, the first one scatters the images, sums
/// gradients, updates, and broadcasts parameters. `None` if operations need no messages, or links are unknown.
pub(super) fn step_time(
    networks: &[&[u64]],
    led: bool,
    computing: ComputeTimes,
    cluster: &ClusterModel<'_>,
) -> Option<StepTime> {
    let ranks = cluster.ranks();
    let mut state = Ranks {
        world: Rehearsal::new(cluster.costs, cluster.hosts)?,
        all: (0..ranks).collect(),
        computes: vec![0.0; ranks],
        sends: vec![0.0; ranks],
        communication: 0.0,
    };
    // Led ranks need a reduce and a broadcast. The tree is the fastest algorithm that has both.
    let led_by = match cluster.algorithm {
        Algorithm::Auto | Algorithm::Direct => Algorithm::Tree,
        named => named,
    };
    let (mut before, mut communicated) = (0.0, 0.0);
    for step in 0..STEPS {
        if step == STEPS / 2 {
            (before, communicated) = (state.computes[0], state.communication);
        }
        if led && cluster.scattered > 0 {
            state.begin("scatter", Algorithm::SingleReducer, cluster.scattered)?;
            state.wait();
        }
        for buckets in networks {
            state.compute(computing.forward);
            for bytes in buckets.iter().rev() {
                state.compute(computing.backward / buckets.len() as f64);
                match led {
                    true => state.begin("reduce", led_by, *bytes)?,
                    false => state.begin("all-reduce", cluster.algorithm, *bytes)?,
                }
                if !cluster.overlaps {
                    state.wait();
                }
            }
            state.wait();
            if led {
                state.computes[0] += computing.update;
                buckets.iter().try_for_each(|bytes| state.begin("broadcast", led_by, *bytes))?;
                state.wait();
            } else {
                state.compute(computing.update);
            }
        }
    }
    let played = (STEPS - STEPS / 2) as f64;
    let own = networks.len() as f64 * (computing.forward + computing.backward + computing.update);
    let whole = (state.computes[0] - before) / played;
    let communication = (state.communication - communicated) / played;
    Some(StepTime { whole, communication, exposed: (whole - own).max(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_collectives::{CostModel, LinkCost, LinkCosts};

    /// Ten nanoseconds a byte, and nothing else.
    fn costs() -> CostModel {
        let cost = LinkCost { alpha: 0.0, beta: 1e-8 };
        let link = Some(LinkCosts { busy: cost, alone: cost });
        CostModel { direct: None, local: link, remote: link, gamma: 0.0 }
    }

    fn time(networks: &[&[u64]], led: bool, ranks: usize, algorithm: Algorithm, scattered: u64) -> StepTime {
        let costs = costs();
        let cluster = ClusterModel { costs: &costs, hosts: &[ranks], algorithm, overlaps: true, scattered };
        step_time(networks, led, ComputeTimes::of_step(0.03), &cluster).expect("by messages")
    }

    #[test]
    fn a_single_reducer_takes_a_wire_for_each_rank() {
        // A megabyte is 10 ms on a wire. Formulas of one operation would say 2 (n - 1) of them.
        for ranks in [2, 4, 8] {
            let found = time(&[&[1_000_000]], false, ranks, Algorithm::SingleReducer, 0);
            let expected = 0.03 + 0.01 * ranks as f64;
            assert!((found.whole - expected).abs() < 1e-4, "{ranks}: {found:?}, {expected}");
            assert!((found.exposed - 0.01 * ranks as f64).abs() < 1e-4, "{found:?}");
        }
        // Buckets that are ready early travel during backward.
        let parts = time(&[&[250_000; 4]], false, 4, Algorithm::SingleReducer, 0);
        // The first is there after 15 ms; each takes the reducer a wire of a rank, 2.5 ms, for each of four.
        assert!((parts.whole - 0.055).abs() < 1e-3, "{parts:?}");
        // Two networks, each of half the time and half the bytes.
        let two = step_of_two();
        assert!((two.whole - 0.07).abs() < 1e-4, "{two:?}");
    }

    fn step_of_two() -> StepTime {
        let costs = costs();
        let algorithm = Algorithm::SingleReducer;
        let cluster = ClusterModel { costs: &costs, hosts: &[4], algorithm, overlaps: true, scattered: 0 };
        let networks: [&[u64]; 2] = [&[500_000], &[500_000]];
        step_time(&networks, false, ComputeTimes::of_step(0.015), &cluster).expect("by messages")
    }

    #[test]
    fn a_leader_scatters_sums_updates_and_gives_back() {
        let found = time(&[&[1_000_000]], true, 4, Algorithm::SingleReducer, 0);
        // Ranks that get parameters first compute while the others get theirs.
        assert!((found.whole - 0.03 - 0.04).abs() < 1e-4, "{found:?}");
        // Images follow all parameters, so no rank begins before: three times out, an image, and three times in.
        let with_images = time(&[&[1_000_000]], true, 4, Algorithm::SingleReducer, 400_000);
        assert!((with_images.whole - 0.03 - 0.06 - 0.001).abs() < 1e-3, "{with_images:?}");
        let costs = costs();
        let none = ClusterModel {
            costs: &costs,
            hosts: &[2],
            algorithm: Algorithm::PushPull,
            overlaps: true,
            scattered: 0,
        };
        assert_eq!(step_time(&[&[1000]], true, ComputeTimes::of_step(1.0), &none), None, "it has no reduce");
    }
}
