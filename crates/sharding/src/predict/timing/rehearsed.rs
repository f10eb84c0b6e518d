//! Steps of ranks that do different things, played through until each takes as long as the one before.

use phalanx_collectives::{Algorithm, Rehearsal};

use super::{Computing, Reach, StepTime};

/// Steps that are played; those of the first half come to their pace.
const STEPS: usize = 8;

/// The times that each rank's two threads have reached.
struct Ranks {
    world: Rehearsal,
    all: Vec<usize>,
    /// When each has computed, and has heard from others, what it has begun.
    computes: Vec<f64>,
    /// When each is done with what it has sent and received.
    sends: Vec<f64>,
    /// Seconds of operations, from when the last rank begins until the last is done.
    communication: f64,
}

impl Ranks {
    /// All compute for so long.
    fn compute(&mut self, seconds: f64) {
        self.computes.iter_mut().for_each(|at| *at += seconds);
    }

    /// All begin an operation, when they have computed what it is about and are done with the one before.
    fn begin(&mut self, operation: &str, algorithm: Algorithm, bytes: u64) -> Option<()> {
        let from: Vec<f64> = self.computes.iter().zip(&self.sends).map(|(a, b)| a.max(*b)).collect();
        let latest = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let ends = self.world.play(operation, algorithm, bytes, &self.all, &from)?;
        self.communication += latest(&ends) - latest(&from);
        self.sends = ends;
        Some(())
    }

    /// All wait for what they have begun.
    fn wait(&mut self) {
        self.computes.iter_mut().zip(&self.sends).for_each(|(at, sent)| *at = at.max(*sent));
    }
}

/// Returns the time of a step of networks that run one after the other, each with these computing times and with buckets of
/// these bytes in the order of forward. Where ranks are `led` the first scatters the images, sums gradients, updates, and
/// broadcasts parameters. `None` if operations need no messages, or links are unknown.
pub(super) fn step_time(
    networks: &[&[u64]],
    led: bool,
    computing: Computing,
    reach: &Reach<'_>,
) -> Option<StepTime> {
    let ranks = reach.ranks();
    let mut state = Ranks {
        world: Rehearsal::new(reach.costs, reach.hosts)?,
        all: (0..ranks).collect(),
        computes: vec![0.0; ranks],
        sends: vec![0.0; ranks],
        communication: 0.0,
    };
    // What reduces and gives back where ranks are led; of all algorithms the tree is what has both, and is quickest.
    let led_by = match reach.algorithm {
        Algorithm::Auto | Algorithm::Direct => Algorithm::Tree,
        named => named,
    };
    let (mut before, mut communicated) = (0.0, 0.0);
    for step in 0..STEPS {
        if step == STEPS / 2 {
            (before, communicated) = (state.computes[0], state.communication);
        }
        if led && reach.scattered > 0 {
            state.begin("scatter", Algorithm::SingleReducer, reach.scattered)?;
            state.wait();
        }
        for buckets in networks {
            state.compute(computing.forward);
            for bytes in buckets.iter().rev() {
                state.compute(computing.backward / buckets.len() as f64);
                match led {
                    true => state.begin("reduce", led_by, *bytes)?,
                    false => state.begin("all-reduce", reach.algorithm, *bytes)?,
                }
                if !reach.overlaps {
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
        let reach = Reach { costs: &costs, hosts: &[ranks], algorithm, overlaps: true, scattered };
        step_time(networks, led, Computing::of_step(0.03), &reach).expect("by messages")
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
        let reach = Reach { costs: &costs, hosts: &[4], algorithm, overlaps: true, scattered: 0 };
        let networks: [&[u64]; 2] = [&[500_000], &[500_000]];
        step_time(&networks, false, Computing::of_step(0.015), &reach).expect("by messages")
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
        let none = Reach {
            costs: &costs,
            hosts: &[2],
            algorithm: Algorithm::PushPull,
            overlaps: true,
            scattered: 0,
        };
        assert_eq!(step_time(&[&[1000]], true, Computing::of_step(1.0), &none), None, "it has no reduce");
    }
}
