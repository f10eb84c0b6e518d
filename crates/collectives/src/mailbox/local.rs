//! Mail between threads of one process, directly into the receiver's inbox.

use std::sync::Arc;
use std::time::Duration;

use super::{Channel, Inbox, Mail, Message, Timing, has_left};
use crate::error::Result;
use crate::failure::Failure;
use crate::simulated::Port;

/// One rank's mail.
pub(crate) struct LocalMail {
    own: usize,
    inboxes: Arc<[Arc<Inbox>]>,
}

impl LocalMail {
    /// Returns the mail of all ranks of a world, through their ports if links are simulated.
    pub(crate) fn world(failures: &[Arc<Failure>], ports: &[Option<Arc<Port>>]) -> Vec<Arc<dyn Mail>> {
        let of = |(rank, (failure, port)): (usize, (&Arc<Failure>, &Option<Arc<Port>>))| {
            Inbox::new(rank, failure.clone(), port.clone())
        };
        let inboxes: Arc<[Arc<Inbox>]> = failures.iter().zip(ports).enumerate().map(of).collect();
        let of = |own| Arc::new(Self { own, inboxes: inboxes.clone() }) as Arc<dyn Mail>;
        (0..failures.len()).map(of).collect()
    }
}

impl Mail for LocalMail {
    fn send(&self, to: usize, channel: Channel, timing: Timing, bytes: &[u8]) -> Result<()> {
        let own = &self.inboxes[self.own];
        if own.failure().is_set() {
            return Err(own.broken(format!("send to rank {to} on channel {}", channel.number)));
        }
        let left = if to == self.own { 0 } else { own.leave(bytes.len(), timing) };
        match self.inboxes[to].put(self.own, channel, bytes.to_vec(), left) {
            true => Ok(()),
            false => Err(has_left(to, channel)),
        }
    }

    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<Message>> {
        self.inboxes[self.own].take(channel, at_most)
    }

    fn close(&self) {
        self.inboxes[self.own].close();
    }
}
