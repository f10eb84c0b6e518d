//! Queues of the workers' requests, in order, until they are admitted.

use std::collections::VecDeque;

use super::Clocks;

/// An operation of a worker on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Pulls the values at the begin of a step.
    Pull,
    /// Pushes a change at the end of a step.
    Push,
}

/// The pending requests of each worker. A pull that is not admitted holds up all later requests of its worker.
#[derive(Debug)]
pub struct RequestQueues<T>(Vec<VecDeque<(Act, T)>>);

impl<T> RequestQueues<T> {
    /// Makes empty queues for `workers` workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| VecDeque::new()).collect())
    }

    /// Queues a request of a worker. [`RequestQueues::next`] returns the admitted requests.
    pub fn arrive(&mut self, worker: usize, act: Act, what: T) {
        self.0[worker].push_back((act, what));
    }

    /// Takes the next admitted request: the first of the lowest worker whose first request is admitted. Call it again
    /// after each request, until it returns `None`.
    pub fn next(&mut self, clocks: &Clocks) -> Option<(usize, Act, T)> {
        let admitted = |(worker, queue): (usize, &VecDeque<(Act, T)>)| {
            let (act, _) = queue.front()?;
            (*act == Act::Push || clocks.admits(worker)).then_some(worker)
        };
        let worker = self.0.iter().enumerate().find_map(admitted)?;
        let (act, what) = self.0[worker].pop_front()?;
        Some((worker, act, what))
    }

    /// Returns the number of pending requests of a worker.
    pub fn of(&self, worker: usize) -> usize {
        self.0[worker].len()
    }
}
