//! Links between ranks of one host: a ring of bytes in shared memory for each pair and direction.
//!
//! One rank writes and one reads, so two counters suffice: the writer advances the first when bytes are written, the reader the
//! second when they are taken. Bytes that do not fit wait in an [`Outbox`].

use std::time::Instant;

use super::outbox::Outbox;
use super::{Link, Section};
use crate::shared::Ring;
use crate::waiting::{LinkFault, WaitLimits};

/// The two rings between this rank and another.
pub(crate) struct Pipe {
    out: Ring,
    inn: Ring,
    outbox: Outbox,
    limits: WaitLimits,
}

impl Pipe {
    pub(crate) fn new(out: Ring, inn: Ring, limits: WaitLimits) -> Self {
        let (ring, theirs) = (out.clone(), limits.clone());
        let outbox = Outbox::new(move |mut bytes| {
            let start = Instant::now();
            while !bytes.is_empty() {
                bytes = &bytes[ring.write(bytes)..];
                if !bytes.is_empty() && !ring.wait_for_room() {
                    // No caller waits for this thread, so it waits as long as the world is intact.
                    let closed = ring.is_abandoned() || theirs.ended(start) == Some(LinkFault::Closed);
                    if closed {
                        return false;
                    }
                }
            }
            true
        });
        Self { out, inn, outbox, limits }
    }
}

impl Link for Pipe {
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<(), LinkFault> {
        if self.out.is_abandoned() {
            return Err(LinkFault::Closed);
        }
        let mut written = 0;
        if self.outbox.is_empty() {
            for part in parts {
                let mut rest = part;
                while !rest.is_empty() {
                    let count = self.out.write(rest);
                    rest = &rest[count..];
                    // An active reader makes room within moments; otherwise the outbox takes over.
                    if !rest.is_empty() && count == 0 && !self.out.look_for_room() {
                        break;
                    }
                }
                written += part.len() - rest.len();
                if !rest.is_empty() {
                    break;
                }
            }
        }
        if written == parts[0].len() + parts[1].len() {
            return Ok(());
        }
        self.outbox.push(parts, written, &self.limits)
    }

    fn receive(&mut self, _: Section, mut into: &mut [u8]) -> Result<(), LinkFault> {
        let start = Instant::now();
        while !into.is_empty() {
            let count = self.inn.read(into);
            into = &mut into[count..];
            if count == 0 && !self.inn.wait_for_bytes() {
                // Bytes that the writer wrote before it left are still read.
                if self.inn.is_finished() {
                    return Err(LinkFault::Closed);
                }
                if let Some(broken) = self.limits.ended(start) {
                    return Err(broken);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.inn.abandon();
        // Queued bytes are written first.
        self.outbox = Outbox::new(|_| false);
        self.out.finish();
    }
}
