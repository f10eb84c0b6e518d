//! Which work streams have waited for, as numbers: so that no memory is used before it is there, or freed while it is used.
//!
//! Each stream has a clock. That of the computing stream goes on with every allocation, that of another one with every piece of
//! work that uses memory. A stream knows a time of another one if it has waited for all that the other was given until then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Stream;

/// A time of each stream.
pub(super) type Times = [u64; Stream::COUNT];

/// What the streams of a device know of each other.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By stream: what it knows; of itself, the time that it has.
    known: Mutex<[Times; Stream::COUNT]>,
    /// Held by whoever gives a stream work and counts it, or lets another one wait for it, so that no event is believed to cover
    /// work that was issued after it.
    turns: [Mutex<()>; Stream::COUNT],
}

impl Order {
    fn known(&self) -> MutexGuard<'_, [Times; Stream::COUNT]> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Alone with a stream.
    pub(super) fn turn(&self, stream: Stream) -> MutexGuard<'_, ()> {
        self.turns[stream as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next time of a stream.
    pub(super) fn tick(&self, stream: Stream) -> u64 {
        let time = &mut self.known()[stream as usize][stream as usize];
        *time += 1;
        *time
    }

    /// Whether a stream has waited for what another one had been given at a time.
    pub(super) fn knows(&self, waiter: Stream, waited: Stream, time: u64) -> bool {
        self.known()[waiter as usize][waited as usize] >= time
    }

    /// What a stream knows now.
    pub(super) fn of(&self, stream: Stream) -> Times {
        self.known()[stream as usize]
    }

    /// A stream has waited for one that knew `times`.
    pub(super) fn learn(&self, waiter: Stream, times: Times) {
        let mut known = self.known();
        for (own, time) in known[waiter as usize].iter_mut().zip(times) {
            *own = time.max(*own);
        }
    }

    /// A stream has waited for an event of another one.
    pub(super) fn learn_time(&self, waiter: Stream, waited: Stream, time: u64) {
        let mut times = Times::default();
        times[waited as usize] = time;
        self.learn(waiter, times);
    }

    /// The host has waited for what a stream was given at a time, so whatever is issued from now on comes after it.
    pub(super) fn passed(&self, waited: Stream, time: u64) {
        for own in self.known().iter_mut() {
            own[waited as usize] = time.max(own[waited as usize]);
        }
    }

    /// All that is known.
    pub(super) fn all(&self) -> [Times; Stream::COUNT] {
        *self.known()
    }

    /// Forgets what streams have learned of each other since `before`: their waits were recorded and have not happened.
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
    fn knowledge_is_handed_on_and_forgotten() {
        let order = Order::default();
        let born = order.tick(Compute);
        assert!(!order.knows(Communication, Compute, born));
        order.learn(Communication, order.of(Compute));
        let used = order.tick(Communication);
        // Through the copies' stream, which has waited for the other one.
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
        // A time that has passed long ago takes nothing back.
        order.passed(Copies, copied - 1);
        assert!(order.knows(Copies, Copies, copied));
    }
}
