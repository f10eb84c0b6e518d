//! Workers at the door: what they want, in order, until it may be done.

use std::collections::VecDeque;

use super::Clocks;

/// An operation of a worker on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Takes the values, with which it begins a step.
    Pull,
    /// Gives a change, with which it ends a step.
    Push,
}

/// The pending requests of each worker. A pull that is not admitted holds up all later requests of its worker.
#[derive(Debug)]
pub struct Waiting<T>(Vec<VecDeque<(Act, T)>>);

impl<T> Waiting<T> {
    /// Makes empty queues of `workers` workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| VecDeque::new()).collect())
    }

    /// A worker wants to do something. Ask [`Waiting::next`] what may be done now.
    pub fn arrive(&mut self, worker: usize, act: Act, what: T) {
        self.0[worker].push_back((act, what));
    }

    /// Takes what is to be done next: the first wish of the worker with the lowest number whose first wish is admitted. Ask
    /// again after doing it, until there is nothing.
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
