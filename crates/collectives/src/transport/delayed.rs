//! A link whose messages take as long as over a simulated one.
//!
//! A message's header carries the time when its last byte left the sender's wire. Only the time of its arrival changes: no thread
//! delays it, and no byte is copied once more. Clocks of one machine agree.

use std::sync::Arc;
use std::time::Instant;

use super::{Link, Section};
use crate::simulated::Port;
use crate::waiting::{LinkFault, WaitLimits};

/// Bytes of the time before a header.
const STAMP: usize = 8;

/// One rank's end of a link.
pub(crate) struct SimulatedDelay {
    link: Box<dyn Link>,
    port: Arc<Port>,
    limits: WaitLimits,
    /// The departure time of the message whose header was received, and the header's bytes.
    left: (u64, usize),
    /// A header with its time.
    stamped: Vec<u8>,
}

impl SimulatedDelay {
    pub(crate) fn new(link: Box<dyn Link>, port: Arc<Port>, limits: WaitLimits) -> Self {
        Self { link, port, limits, left: (0, 0), stamped: Vec::new() }
    }
}

impl Link for SimulatedDelay {
    fn send(&mut self, [header, payload]: [&[u8]; 2]) -> Result<(), LinkFault> {
        let left = self.port.leave(header.len() + payload.len());
        self.stamped.clear();
        self.stamped.extend_from_slice(&left.to_le_bytes());
        self.stamped.extend_from_slice(header);
        self.link.send([&self.stamped, payload])
    }

    fn receive(&mut self, section: Section, into: &mut [u8]) -> Result<(), LinkFault> {
        let clock = self.port.clock();
        if section == Section::Payload {
            // The bytes are under way already, so taking them is work.
            self.link.receive(section, into)?;
            let due = self.port.arrive(self.left.0, self.left.1 + into.len());
            let start = Instant::now();
            return clock.wait_until(due, || self.limits.ended(start));
        }
        self.stamped.resize(STAMP + into.len(), 0);
        clock.paused(|| self.link.receive(section, &mut self.stamped))?;
        let (stamp, header) = self.stamped.split_at(STAMP);
        self.left = (u64::from_le_bytes(std::array::from_fn(|at| stamp[at])), header.len());
        into.copy_from_slice(header);
        Ok(())
    }
}
