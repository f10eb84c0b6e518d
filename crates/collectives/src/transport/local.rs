//! Ranks as threads of one process: a channel from each to each, and one back for buffers to be used again,
//! because fresh ones of this size cost the system more than the copy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use super::{LinkError, Transport};
use crate::failure::Failure;

/// How often a waiting rank looks whether the world is broken.
const LOOK: Duration = Duration::from_millis(50);

/// Messages that may wait for a rank; a sender that is further ahead waits.
const QUEUE: usize = 64;

/// The end where bytes go in.
struct Outgoing {
    messages: Sender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

/// The end where they come out.
struct Incoming {
    messages: Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
    /// The message that has arrived but is not read to its end, and how far it is read.
    current: Vec<u8>,
    used: usize,
}

/// One rank's ends of the channels; its own place is empty.
pub(crate) struct Local {
    to: Vec<Option<Outgoing>>,
    from: Vec<Option<Incoming>>,
    failure: Arc<Failure>,
    timeout: Duration,
}

/// The transports of a world of threads.
pub(crate) fn world(size: usize, failures: &[Arc<Failure>], timeout: Duration) -> Vec<Local> {
    let mut ranks: Vec<Local> = failures
        .iter()
        .map(|failure| Local {
            to: (0..size).map(|_| None).collect(),
            from: (0..size).map(|_| None).collect(),
            failure: failure.clone(),
            timeout,
        })
        .collect();
    for a in 0..size {
        for b in (0..size).filter(|b| *b != a) {
            let (sender, receiver) = bounded(QUEUE);
            let (give_back, returned) = bounded(QUEUE);
            ranks[a].to[b] = Some(Outgoing { messages: sender, returned });
            ranks[b].from[a] = Some(Incoming { messages: receiver, give_back, current: Vec::new(), used: 0 });
        }
    }
    ranks
}

impl Incoming {
    /// Copies what is there of the current message; how much.
    fn read(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.current.len() - self.used);
        into[..count].copy_from_slice(&self.current[self.used..self.used + count]);
        self.used += count;
        count
    }

    /// Makes `message` the current one; the read one goes back.
    fn turn_to(&mut self, message: Vec<u8>) {
        self.used = 0;
        let read = std::mem::replace(&mut self.current, message);
        // With enough of them on their way back, one more is not worth waiting for.
        let _ = self.give_back.try_send(read);
    }
}

impl Local {
    /// Why waiting for a rank since `start` should end, if it should.
    fn give_up(&self, rank: usize, start: Instant) -> Option<LinkError> {
        if self.failure.get().is_some() {
            return Some(LinkError::Closed(rank));
        }
        (start.elapsed() > self.timeout).then_some(LinkError::Timeout(rank))
    }
}

impl Transport for Local {
    fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        let start = Instant::now();
        let link = self.to[to].as_ref().ok_or(LinkError::Closed(to))?;
        let mut bytes = link.returned.try_recv().unwrap_or_default();
        bytes.clear();
        for part in parts {
            bytes.extend_from_slice(part);
        }
        loop {
            bytes = match link.messages.send_timeout(bytes, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(LinkError::Closed(to)),
                Err(SendTimeoutError::Timeout(bytes)) => match self.give_up(to, start) {
                    Some(error) => return Err(error),
                    None => bytes,
                },
            };
        }
    }

    fn receive(&mut self, from: usize, mut into: &mut [u8]) -> Result<(), LinkError> {
        let start = Instant::now();
        while !into.is_empty() {
            let link = self.from[from].as_mut().ok_or(LinkError::Closed(from))?;
            let count = link.read(into);
            if count > 0 {
                into = &mut into[count..];
                continue;
            }
            match link.messages.recv_timeout(LOOK) {
                Ok(message) => link.turn_to(message),
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed(from)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(error) = self.give_up(from, start) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}
