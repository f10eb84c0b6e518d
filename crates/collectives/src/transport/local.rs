//! Links between threads of one process: a channel for each pair and direction, and one that returns buffers for reuse, as fresh
//! ones of this size cost the system more than the copy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use super::{Link, Links, Section};
use crate::failure::Failure;
use crate::waiting::{LinkFault, WaitLimits};

/// The time between two checks of a waiting rank for a broken world.
const LOOK: Duration = Duration::from_millis(50);

/// Messages that may be queued for a rank; further sends wait.
const QUEUE: usize = 64;

/// The sending end.
struct Outgoing {
    messages: Sender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

/// The receiving end.
struct Incoming {
    messages: Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
    /// The message that is being read, and the bytes read of it.
    current: Vec<u8>,
    used: usize,
}

/// One rank's ends of the channels to another.
struct Local {
    to: Outgoing,
    from: Incoming,
    limits: WaitLimits,
}

fn channel() -> (Outgoing, Incoming) {
    let (sender, receiver) = bounded(QUEUE);
    let (give_back, returned) = bounded(QUEUE);
    let outgoing = Outgoing { messages: sender, returned };
    (outgoing, Incoming { messages: receiver, give_back, current: Vec::new(), used: 0 })
}

/// Returns the links of a world of threads.
pub(crate) fn world(failures: &[Arc<Failure>], timeout: Duration) -> Vec<Links> {
    let size = failures.len();
    let mut ranks: Vec<Links> = (0..size).map(|_| Links((0..size).map(|_| None).collect())).collect();
    for a in 0..size {
        for b in 0..a {
            let ((a_to, b_from), (b_to, a_from)) = (channel(), channel());
            for (own, other, to, from) in [(a, b, a_to, a_from), (b, a, b_to, b_from)] {
                let limits = WaitLimits { failure: failures[own].clone(), timeout };
                ranks[own].0[other] = Some(Box::new(Local { to, from, limits }));
            }
        }
    }
    ranks
}

impl Incoming {
    /// Copies available bytes of the current message; returns their number.
    fn read(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.current.len() - self.used);
        into[..count].copy_from_slice(&self.current[self.used..self.used + count]);
        self.used += count;
        count
    }

    /// Makes `message` the current one and returns the buffer of the last.
    fn turn_to(&mut self, message: Vec<u8>) {
        self.used = 0;
        let read = std::mem::replace(&mut self.current, message);
        // If enough buffers are being returned, one more is dropped.
        let _ = self.give_back.try_send(read);
    }
}

impl Link for Local {
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<(), LinkFault> {
        let start = Instant::now();
        let mut bytes = self.to.returned.try_recv().unwrap_or_default();
        bytes.clear();
        for part in parts {
            bytes.extend_from_slice(part);
        }
        loop {
            bytes = match self.to.messages.send_timeout(bytes, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(LinkFault::Closed),
                Err(SendTimeoutError::Timeout(bytes)) => match self.limits.ended(start) {
                    Some(broken) => return Err(broken),
                    None => bytes,
                },
            };
        }
    }

    fn receive(&mut self, _: Section, mut into: &mut [u8]) -> Result<(), LinkFault> {
        let start = Instant::now();
        while !into.is_empty() {
            let count = self.from.read(into);
            if count > 0 {
                into = &mut into[count..];
                continue;
            }
            match self.from.messages.recv_timeout(LOOK) {
                Ok(message) => self.from.turn_to(message),
                Err(RecvTimeoutError::Disconnected) => return Err(LinkFault::Closed),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(broken) = self.limits.ended(start) {
                        return Err(broken);
                    }
                }
            }
        }
        Ok(())
    }
}
