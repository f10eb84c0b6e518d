//! Moving bytes between two ranks. What the bytes mean is the algorithms' business.
//!
//! A [`Link`] joins two ranks. A world may mix them: ranks of one host through pipes in shared memory, others through
//! TCP, and threads of one process through channels.

pub(crate) mod local;
mod outbox;
#[cfg(target_os = "linux")]
pub(crate) mod pipe;
pub(crate) mod tcp;
mod wire;

pub(crate) use wire::Wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Why bytes did not arrive, and from which member of the world they did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The connection to the rank is gone.
    Closed(usize),
    /// Nothing came from the rank in the allowed time.
    Timeout(usize),
}

/// Why one link does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    Closed,
    Timeout,
}

/// The two parts of a message. The header's length is always the same; the payload's is in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Header,
    Payload,
}

/// Ordered, reliable messages between this rank and one other.
pub(crate) trait Link: Send {
    /// Queues a header and a payload, without waiting for the other to receive.
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<(), Broken>;

    /// Waits for a whole header or a whole payload.
    fn receive(&mut self, part: Part, into: &mut [u8]) -> Result<(), Broken>;
}

/// How long to wait, and what ends the wait earlier.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub(crate) failure: Arc<Failure>,
    pub(crate) timeout: Duration,
}

impl Patience {
    /// Why a wait since `start` should end, if it should.
    pub(crate) fn ended(&self, start: Instant) -> Option<Broken> {
        if self.failure.is_set() {
            return Some(Broken::Closed);
        }
        (start.elapsed() > self.timeout).then_some(Broken::Timeout)
    }
}

/// This rank's links, by rank; its own place is empty.
pub(crate) struct Links(pub(crate) Vec<Option<Box<dyn Link>>>);

impl Links {
    fn on<R>(
        &mut self,
        rank: usize,
        act: impl FnOnce(&mut dyn Link) -> Result<R, Broken>,
    ) -> Result<R, LinkError> {
        let link = self.0.get_mut(rank).and_then(Option::as_mut).ok_or(LinkError::Closed(rank))?;
        act(link.as_mut()).map_err(|broken| match broken {
            Broken::Closed => LinkError::Closed(rank),
            Broken::Timeout => LinkError::Timeout(rank),
        })
    }

    pub(crate) fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        self.on(to, |link| link.send(parts))
    }

    pub(crate) fn receive(&mut self, from: usize, part: Part, into: &mut [u8]) -> Result<(), LinkError> {
        self.on(from, |link| link.receive(part, into))
    }
}
