//! Values with a version, and the age of each worker's copy.

use super::{Clocks, Histogram};

/// The result of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullResult {
    /// The number of changes of the values.
    pub version: u64,
    /// The number of steps that the worker is ahead of the slowest. It misses at most as many steps of the others.
    pub lead: u64,
}

/// The result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushResult {
    /// The version that the worker had pulled.
    pub pulled: u64,
    /// The version that the values had when the push came.
    pub version: u64,
}

impl PushResult {
    /// Returns the number of changes between the pull and the push.
    pub fn staleness(self) -> u64 {
        self.version - self.pulled
    }
}

/// Values that workers pull, compute with and push changes to, each at its own pace within a bound.
///
/// ```
/// use phalanx_sharding::synchrony::VersionedStore;
///
/// let mut store = VersionedStore::new(10.0, 2, Some(0));
/// assert!(store.pull(0).is_some() && store.pull(1).is_some());
/// let first = store.push(0, |value, _| *value -= 1.0);
/// assert!(store.pull(0).is_none(), "worker 1 has not ended its step");
/// let second = store.push(1, |value, _| *value -= 1.0);
/// assert_eq!((first.0.staleness(), second.0.staleness()), (0, 1));
/// assert_eq!((store.pull(0).map(|pulled| pulled.version), *store.values()), (Some(2), 8.0));
/// ```
#[derive(Debug)]
pub struct VersionedStore<V> {
    values: V,
    version: u64,
    clocks: Clocks,
    /// The version of each worker's last pull.
    pulled: Vec<u64>,
    staleness: Histogram,
    leads: Histogram,
    spread: u64,
}

impl<V> VersionedStore<V> {
    /// Makes a store for `workers` workers. See [`Clocks`] for the bound.
    pub fn new(values: V, workers: usize, bound: Option<u64>) -> Self {
        Self {
            values,
            version: 0,
            clocks: Clocks::new(workers, bound),
            pulled: vec![0; workers],
            staleness: Histogram::default(),
            leads: Histogram::default(),
            spread: 0,
        }
    }

    /// Pulls the values for a worker; `None` if it has to wait for the slowest one.
    pub fn pull(&mut self, worker: usize) -> Option<PullResult> {
        if !self.clocks.admits(worker) {
            return None;
        }
        let lead = self.clocks.lead(worker);
        self.leads.add(lead);
        self.pulled[worker] = self.version;
        Some(PullResult { version: self.version, lead })
    }

    /// Ends a worker's step with a change of the values. `change` receives its staleness.
    pub fn push<R>(
        &mut self,
        worker: usize,
        change: impl FnOnce(&mut V, PushResult) -> R,
    ) -> (PushResult, R) {
        let pushed = PushResult { pulled: self.pulled[worker], version: self.version };
        let result = change(&mut self.values, pushed);
        self.staleness.add(pushed.staleness());
        self.version += 1;
        self.tick(worker);
        (pushed, result)
    }

    /// Records a step that all living workers have ended together: one change, which no worker's pull has missed.
    pub fn push_together<R>(&mut self, change: impl FnOnce(&mut V) -> R) -> R {
        let result = change(&mut self.values);
        for worker in self.clocks.living().collect::<Vec<_>>() {
            self.staleness.add(self.version - self.pulled[worker]);
            self.clocks.tick(worker);
        }
        self.version += 1;
        result
    }

    fn tick(&mut self, worker: usize) {
        self.clocks.tick(worker);
        self.spread = self.spread.max(self.clocks.spread());
    }

    /// The values.
    pub fn values(&self) -> &V {
        &self.values
    }

    /// Changes the values outside of workers' steps, while no worker computes. All workers take the new values before they
    /// go on.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut V) -> R) -> R {
        self.version += 1;
        self.pulled.fill(self.version);
        change(&mut self.values)
    }

    /// The number of changes of the values.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the workers' clocks.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Removes a worker that has died; the others no longer wait for it.
    pub fn retire(&mut self, worker: usize) {
        self.clocks.retire(worker);
    }

    /// Returns the staleness of changes, in changes between pull and push.
    pub fn staleness(&self) -> &Histogram {
        &self.staleness
    }

    /// Returns the steps that workers were ahead of the slowest when they pulled; at most the bound.
    pub fn leads(&self) -> &Histogram {
        &self.leads
    }

    /// Returns the largest difference of clocks so far.
    pub fn spread(&self) -> u64 {
        self.spread
    }

    /// Goes on from a version and clocks that were saved, between steps.
    pub fn restore(&mut self, version: u64, clocks: &[u64]) {
        self.version = version;
        self.clocks.restore(clocks);
        self.pulled.fill(version);
    }
}
