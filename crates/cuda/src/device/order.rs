//! Vector clocks of the streams. They ensure that memory is not used before its allocation, nor freed while a stream uses it.
//!
//! Each stream has a clock. The compute stream's advances with every allocation, the others' with every piece of work that uses
//! memory. A stream knows a time of another stream if it has waited for all work up to that time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Stream;

/// A time of each stream.
pub(super) type Times = [u64; Stream::COUNT];

/// The clocks of a device's streams.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By stream: the times that it knows. Its own entry is its clock.
    known: Mutex<[Times; Stream::COUNT]>,
    /// Locked while work is issued and counted, or while a wait is issued, so that no event seems to cover later work.
    turns: [Mutex<()>; Stream::COUNT],
}

impl Order {
    fn known(&self) -> MutexGuard<'_, [Times; Stream::COUNT]> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a stream.
    pub(super) fn turn(&self, stream: Stream) -> MutexGuard<'_, ()> {
        self.turns[stream as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances a stream's clock, and returns it.
    pub(super) fn tick(&self, stream: Stream) -> u64 {
        let time = &mut self.known()[stream as usize][stream as usize];
        *time += 1;
        *time
    }

    /// Returns true if `waiter` has waited for the work of `waited` up to `time`.
    pub(super) fn knows(&self, waiter: Stream, waited: Stream, time: u64) -> bool {
        self.known()[waiter as usize][waited as usize] >= time
    }

    /// Returns the times that a stream knows.
    pub(super) fn of(&self, stream: Stream) -> Times {
        self.known()[stream as usize]
    }

    /// Records that a stream has waited for one that knew `times`.
    pub(super) fn learn(&self, waiter: Stream, times: Times) {
        let mut known = self.known();
        for (own, time) in known[waiter as usize].iter_mut().zip(times) {
            *own = time.max(*own);
        }
    }

    /// Records that a stream has waited for an event of another one.
    pub(super) fn learn_time(&self, waiter: Stream, waited: Stream, time: u64) {
        let mut times = Times::default();
        times[waited as usize] = time;
        self.learn(waiter, times);
    }

    /// Records that the host has waited for a stream up to `time`: all later work comes after it.
    pub(super) fn passed(&self, waited: Stream, time: u64) {
        for own in self.known().iter_mut() {
            own[waited as usize] = time.max(own[waited as usize]);
        }
    }

    /// Returns all clocks.
    pub(super) fn all(&self) -> [Times; Stream::COUNT] {
        *self.known()
    }

    /// Forgets the waits since `before`: they were captured and have not happened.
    pub(super) fn forget(&self, before: [Times; Stream::COUNT]) {
        let mut known = self.known();
        for (waiter, times) in before.into_iter().enumerate() {
            for (waited, time) in times.into_iter().enumerate().filter(|(waited, _)| *waited != waiter) {
                known[waiter][waited] = time.min(known[waiter][waited]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stream::{Communication, Compute, Copies};

    #[test]
    fn waits_are_transitive_and_forgotten() {
        let order = Order::default();
        let born = order.tick(Compute);
        assert!(!order.knows(Communication, Compute, born));
        order.learn(Communication, order.of(Compute));
        let used = order.tick(Communication);
        // Through the copy stream, which has waited for the other one.
        order.learn(Copies, order.of(Communication));
        assert!(order.knows(Copies, Compute, born) && !order.knows(Compute, Communication, used));
        let before = order.all();
        order.learn(Compute, order.of(Copies));
        assert!(order.knows(Compute, Communication, used));
        order.forget(before);
        assert!(!order.knows(Compute, Communication, used) && order.knows(Compute, Compute, born));
        order.learn_time(Compute, Communication, used);
        assert!(order.knows(Compute, Communication, used));
        let copied = order.tick(Copies);
        assert!(!order.knows(Compute, Copies, copied));
        order.passed(Copies, copied);
        assert!(order.knows(Compute, Copies, copied) && order.knows(Communication, Copies, copied));
        // An earlier time takes nothing back.
        order.passed(Copies, copied - 1);
        assert!(order.knows(Copies, Copies, copied));
    }
}
