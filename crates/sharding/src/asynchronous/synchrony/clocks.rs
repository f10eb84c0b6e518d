//! A clock for each worker, and the bound on how far they may be apart.

/// The clocks of workers, which count the steps that each has pushed, and how far one may be ahead of the slowest.
///
/// With a bound of 0 all workers are at the same step (bulk-synchronous). With bound `s` a worker may begin a step while the
/// slowest is `s` steps behind it (stale-synchronous, Ho et al. 2013). Without a bound no worker waits (asynchronous).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clocks {
    clocks: Vec<u64>,
    bound: Option<u64>,
    /// Workers that have died; the others do not wait for them.
    gone: Vec<bool>,
}

impl Clocks {
    /// Makes the clocks of `workers` workers, all at 0.
    pub fn new(workers: usize, bound: Option<u64>) -> Self {
        Self { clocks: vec![0; workers], bound, gone: vec![false; workers] }
    }

    /// The number of steps that a worker may be ahead of the slowest; `None` for any number.
    pub fn bound(&self) -> Option<u64> {
        self.bound
    }

    /// True if a worker may begin its next step: it is at most the bound ahead of the slowest.
    pub fn admits(&self, worker: usize) -> bool {
        self.bound.is_none_or(|bound| self.lead(worker) <= bound)
    }

    /// A worker has ended a step.
    pub fn tick(&mut self, worker: usize) {
        self.clocks[worker] += 1;
    }

    /// Returns the number of steps that a worker is ahead of the slowest.
    pub fn lead(&self, worker: usize) -> u64 {
        self.clocks[worker].saturating_sub(self.slowest())
    }

    /// The steps of the slowest worker that lives.
    pub fn slowest(&self) -> u64 {
        self.living().map(|worker| self.clocks[worker]).min().unwrap_or(0)
    }

    /// Returns the number of steps that the fastest living worker is ahead of the slowest.
    pub fn spread(&self) -> u64 {
        self.living().map(|worker| self.lead(worker)).max().unwrap_or(0)
    }

    /// The steps that each worker has ended.
    pub fn all(&self) -> &[u64] {
        &self.clocks
    }

    /// The workers that live, in order.
    pub fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.clocks.len()).filter(|worker| !self.gone[*worker])
    }

    /// Removes a worker that has died: the others no longer wait for it.
    pub fn retire(&mut self, worker: usize) {
        self.gone[worker] = true;
    }

    /// Goes on from clocks that were saved; of another number of workers all are at the slowest's.
    pub fn restore(&mut self, saved: &[u64]) {
        match saved.len() == self.clocks.len() {
            true => self.clocks.copy_from_slice(saved),
            false => self.clocks.fill(saved.iter().copied().min().unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_waits_for_the_slowest_that_lives() {
        let mut clocks = Clocks::new(3, Some(1));
        clocks.tick(0);
        assert!(clocks.admits(0), "one ahead");
        clocks.tick(0);
        assert!(!clocks.admits(0) && clocks.admits(1));
        assert_eq!((clocks.lead(0), clocks.spread(), clocks.slowest()), (2, 2, 0));
        clocks.tick(1);
        assert!(!clocks.admits(0), "worker 2 has not moved");
        clocks.retire(2);
        assert!(clocks.admits(0));
        assert_eq!(clocks.living().collect::<Vec<_>>(), [0, 1]);
        clocks.restore(&[4, 7]);
        assert_eq!(clocks.all(), [4, 4, 4]);
    }
}
