//! Mail between threads of one process: straight into the receiver's inbox.

use std::sync::Arc;
use std::time::Duration;

use super::{Channel, Inbox, Mail, has_left};
use crate::error::Result;
use crate::failure::Failure;

/// One rank's mail.
pub(crate) struct LocalMail {
    own: usize,
    inboxes: Arc<[Arc<Inbox>]>,
}

impl LocalMail {
    /// The mail of all ranks of a world.
    pub(crate) fn world(failures: &[Arc<Failure>]) -> Vec<Arc<dyn Mail>> {
        let inboxes: Arc<[Arc<Inbox>]> =
            failures.iter().enumerate().map(|(rank, failure)| Inbox::new(rank, failure.clone())).collect();
        let of = |own| Arc::new(Self { own, inboxes: inboxes.clone() }) as Arc<dyn Mail>;
        (0..failures.len()).map(of).collect()
    }
}

impl Mail for LocalMail {
    fn send(&self, to: usize, channel: Channel, bytes: &[u8]) -> Result<()> {
        let own = &self.inboxes[self.own];
        if own.failure().is_set() {
            return Err(own.broken(format!("send to rank {to} on channel {}", channel.number)));
        }
        match self.inboxes[to].put(self.own, channel, bytes.to_vec()) {
            true => Ok(()),
            false => Err(has_left(to, channel)),
        }
    }

    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        self.inboxes[self.own].take(channel, at_most)
    }

    fn close(&self) {
        self.inboxes[self.own].close();
    }
}
