//! Transport of bytes between two ranks.
//!
//! A [`Link`] joins two ranks. A world may mix them: ranks of one host through pipes in shared memory, others through
//! TCP, and threads of one process through channels.

mod delayed;
pub(crate) mod local;
mod outbox;
#[cfg(target_os = "linux")]
pub(crate) mod pipe;
pub(crate) mod tcp;
mod wire;

pub(crate) use delayed::SimulatedDelay;
pub(crate) use wire::Wire;

use std::sync::Arc;

use crate::simulated::Port;
use crate::waiting::{LinkError, LinkFault, WaitLimits};

/// The two parts of a message. Headers have a fixed length and state the payload's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Header,
    Payload,
}

/// Ordered, reliable messages between this rank and one other.
pub(crate) trait Link: Send {
    /// Queues a header and a payload, without waiting for the other to receive.
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<(), LinkFault>;

    /// Waits for a whole header or a whole payload.
    fn receive(&mut self, section: Section, into: &mut [u8]) -> Result<(), LinkFault>;
}

/// This rank's links, by rank. Its own place is empty.
pub(crate) struct Links(pub(crate) Vec<Option<Box<dyn Link>>>);

impl Links {
    /// Delays messages as over the simulated link to each rank.
    pub(crate) fn delay<'a>(&mut self, port: impl Fn(usize) -> &'a Arc<Port>, limits: &WaitLimits) {
        for (rank, place) in self.0.iter_mut().enumerate() {
            let delayed = |link| {
                Box::new(SimulatedDelay::new(link, port(rank).clone(), limits.clone())) as Box<dyn Link>
            };
            *place = place.take().map(delayed);
        }
    }

    fn on<R>(
        &mut self,
        rank: usize,
        act: impl FnOnce(&mut dyn Link) -> Result<R, LinkFault>,
    ) -> Result<R, LinkError> {
        let link = self.0.get_mut(rank).and_then(Option::as_mut).ok_or(LinkError::Closed(rank))?;
        act(link.as_mut()).map_err(|broken| match broken {
            LinkFault::Closed => LinkError::Closed(rank),
            LinkFault::Timeout => LinkError::Timeout(rank),
            LinkFault::Altered => LinkError::Altered(rank),
        })
    }

    pub(crate) fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        self.on(to, |link| link.send(parts))
    }

    pub(crate) fn receive(
        &mut self,
        from: usize,
        section: Section,
        into: &mut [u8],
    ) -> Result<(), LinkError> {
        self.on(from, |link| link.receive(section, into))
    }
}
