//! A rank's connection to the simulated network.

use std::sync::{Mutex, PoisonError};

use super::clock::Clock;
use super::link::SimulatedLink;
use super::wire::Wire;

/// A rank's two wires, which all of its communicators share.
#[derive(Debug)]
pub(crate) struct Port {
    link: SimulatedLink,
    outgoing: Mutex<Wire>,
    incoming: Mutex<Wire>,
}

impl Port {
    pub(crate) fn new(link: SimulatedLink) -> Self {
        Self { link, outgoing: Mutex::default(), incoming: Mutex::default() }
    }

    /// Returns the clock of this rank.
    pub(crate) fn clock(&self) -> Clock {
        self.link.clock
    }

    /// Sends `bytes` bytes; returns the departure time of the last.
    pub(crate) fn leave(&self, bytes: usize) -> u64 {
        let mut wire = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        wire.occupy(self.clock().nanos(), self.link.nanos(bytes))
    }

    /// Receives `bytes` bytes whose last one left the sender at `left`; returns its arrival.
    pub(crate) fn arrive(&self, left: u64, bytes: usize) -> u64 {
        let length = self.link.nanos(bytes);
        let first = left.saturating_add(self.link.latency.as_nanos() as u64).saturating_sub(length);
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).occupy(first, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_to_one_rank_share_its_wire() {
        let link: SimulatedLink = "8Mbit,1ms".parse().expect("a link");
        let port = Port::new(link);
        // 1000 bytes take a millisecond.
        assert_eq!(port.arrive(1_000_000, 1000), 2_000_000);
        assert_eq!(port.arrive(1_000_000, 1000), 3_000_000);
        assert_eq!(port.arrive(5_000_000, 1000), 6_000_000);
        let (first, second) = (port.leave(1000), port.leave(1000));
        assert!((1_000_000..1_900_000).contains(&(second - first)), "{first} {second}");
    }
}
