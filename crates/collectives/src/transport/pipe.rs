//! Ranks of one host: a ring of bytes in shared memory from each to each.
//!
//! One rank writes and one reads, so two counters suffice: the writer moves the first on when bytes are there, the reader
//! the second when they are taken. What does not fit waits in an [`Outbox`].

use std::time::Instant;

use super::outbox::Outbox;
use super::{Link, Section};
use crate::patience::{Broken, Patience};
use crate::shared::Ring;

/// The two rings between this rank and another.
pub(crate) struct Pipe {
    out: Ring,
    inn: Ring,
    outbox: Outbox,
    patience: Patience,
}

impl Pipe {
    pub(crate) fn new(out: Ring, inn: Ring, patience: Patience) -> Self {
        let (ring, theirs) = (out.clone(), patience.clone());
        let outbox = Outbox::new(move |mut bytes| {
            let start = Instant::now();
            while !bytes.is_empty() {
                bytes = &bytes[ring.write(bytes)..];
                if !bytes.is_empty() && !ring.wait_for_room() {
                    // Nobody waits for this thread, so it waits as long as there is hope.
                    let closed = ring.is_abandoned() || theirs.ended(start) == Some(Broken::Closed);
                    if closed {
                        return false;
                    }
                }
            }
            true
        });
        Self { out, inn, outbox, patience }
    }
}

impl Link for Pipe {
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<(), Broken> {
        if self.out.is_abandoned() {
            return Err(Broken::Closed);
        }
        let mut written = 0;
        if self.outbox.is_empty() {
            for part in parts {
                let mut rest = part;
                while !rest.is_empty() {
                    let count = self.out.write(rest);
                    rest = &rest[count..];
                    // A reader that is at it makes room within moments; else the outbox takes over.
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
        self.outbox.push(parts, written, &self.patience)
    }

    fn receive(&mut self, _: Section, mut into: &mut [u8]) -> Result<(), Broken> {
        let start = Instant::now();
        while !into.is_empty() {
            let count = self.inn.read(into);
            into = &mut into[count..];
            if count == 0 && !self.inn.wait_for_bytes() {
                // What was written before the writer left is still read.
                if self.inn.is_finished() {
                    return Err(Broken::Closed);
                }
                if let Some(broken) = self.patience.ended(start) {
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
        // What is queued is written first.
        self.outbox = Outbox::new(|_| false);
        self.out.finish();
    }
}
