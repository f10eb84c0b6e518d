//! Workers with scripted delays against a real store, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::{Act, Histogram, RequestQueues, VersionedStore};

/// The events of a simulated run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// The acts of workers with their times, in order.
    pub events: Vec<(Duration, usize, Act)>,
    /// The waiting time of each worker.
    pub waited: Vec<Duration>,
    /// The time when the last worker had done its steps.
    pub end: Duration,
    /// The staleness of pushes.
    pub staleness: Histogram,
    /// The steps that workers were ahead of the slowest when they pulled.
    pub leads: Histogram,
    /// The largest difference of clocks.
    pub spread: u64,
}

/// Simulates workers that take `steps` steps each. Worker `w` computes for `delay(w, step)`, under a bound as in
/// [`super::Clocks`]. Messages take no time. Events at the same time happen in the order of workers.
///
/// ```
/// use std::time::Duration;
/// use phalanx_sharding::synchrony::simulate;
///
/// // One of four workers takes three times as long in every fifth step.
/// let delay = |worker: usize, step: u64| {
///     Duration::from_millis(if step % 4 == worker as u64 { 30 } else { 10 })
/// };
/// let [bulk, stale] = [0, 3].map(|bound| simulate(Some(bound), 4, 100, delay));
/// assert!(stale.end < bulk.end && stale.leads.max() <= Some(3));
/// ```
pub fn simulate(
    bound: Option<u64>,
    workers: usize,
    steps: u64,
    mut delay: impl FnMut(usize, u64) -> Duration,
) -> Timeline {
    let mut store = VersionedStore::new((), workers, bound);
    let mut waiting = RequestQueues::new(workers);
    let mut events = Vec::new();
    let mut waited = vec![Duration::ZERO; workers];
    let mut computing = BinaryHeap::new();
    let mut now = Duration::ZERO;
    if steps > 0 {
        (0..workers).for_each(|worker| waiting.arrive(worker, Act::Pull, now));
    }
    loop {
        while let Some((worker, act, since)) = waiting.next(store.clocks()) {
            events.push((now, worker, act));
            match act {
                Act::Pull => {
                    store.pull(worker);
                    waited[worker] += now - since;
                    let end = now + delay(worker, store.clocks().all()[worker]);
                    computing.push(Reverse((end, worker)));
                }
                Act::Push => {
                    store.push(worker, |(), _| ());
                    if store.clocks().all()[worker] < steps {
                        waiting.arrive(worker, Act::Pull, now);
                    }
                }
            }
        }
        let Some(Reverse((end, worker))) = computing.pop() else { break };
        now = end;
        waiting.arrive(worker, Act::Push, now);
    }
    let (staleness, leads) = (store.staleness().clone(), store.leads().clone());
    Timeline { events, waited, end: now, staleness, leads, spread: store.spread() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_straggler_holds_up_those_who_wait_for_it() {
        // Worker 1 takes three times as long.
        let delay = |worker: usize, _| if worker == 1 { 3 * MS } else { MS };
        let bulk = simulate(Some(0), 2, 10, delay);
        assert_eq!((bulk.end, bulk.waited.clone(), bulk.spread), (30 * MS, vec![18 * MS, Duration::ZERO], 1));
        let free = simulate(None, 2, 10, delay);
        assert_eq!((free.end, free.waited), (30 * MS, vec![Duration::ZERO; 2]));
        assert_eq!(free.staleness.total(), 20);
        // Beyond the bound a worker that is always slower is waited for all the same.
        let stale = simulate(Some(2), 2, 10, delay);
        assert_eq!((stale.end, stale.spread, stale.leads.max()), (30 * MS, 3, Some(2)));
        assert!(stale.waited[0] < bulk.waited[0]);
    }

    #[test]
    fn hiccups_of_changing_workers_are_what_a_bound_hides() {
        let delay = |worker: usize, step: u64| if step % 4 == worker as u64 { 3 * MS } else { MS };
        let end = |bound| simulate(bound, 4, 40, delay).end;
        assert_eq!(end(Some(0)), 120 * MS, "a worker is slow in every step");
        assert_eq!(end(None), 60 * MS, "each worker is slow in a quarter of them");
        assert!(end(Some(3)) <= 66 * MS, "{:?}", end(Some(3)));
    }
}
