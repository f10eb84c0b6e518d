//! Messages that belong to no operation: from any rank, by channel, of any length, at any time.
//!
//! They are separate from the links of operations, so neither delays the other: threads write directly into the receiver's
//! [`Inbox`], processes use separate connections whose reading end never waits for the program.

mod inbox;
mod local;

pub(crate) use inbox::{Inbox, Message};
pub(crate) use local::LocalMail;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{CommError, Result};
use crate::failure::Cause;

/// The longest message that belongs to no operation, in bytes.
pub(crate) const LONGEST: usize = 1 << 32;

/// The properties that match a message, apart from its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Channel {
    /// The communicator's number.
    pub(crate) communicator: u32,
    /// The number that the program chose.
    pub(crate) number: u32,
}

/// The clocks that a message takes time by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The machine's clock.
    Wall,
    /// Simulated ones, too: of the thread that sends, and of the one that receives.
    Simulated,
}

/// Delivery of messages to the ranks of a world, by their numbers in it.
pub(crate) trait Mail: Send + Sync {
    /// Sends a message to a rank, which may be this one, and returns before it has arrived.
    fn send(&self, to: usize, channel: Channel, timing: Timing, bytes: &[u8]) -> Result<()>;

    /// Returns the next message of a channel. Waits up to `at_most` for one.
    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<Message>>;

    /// Leaves the world in good order: sent messages arrive, and no more are taken.
    fn close(&self);
}

/// A communicator's view of the world's mail.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub(crate) mail: Arc<dyn Mail>,
    /// The communicator's number.
    pub(crate) communicator: u32,
    /// The communicator's ranks in the world.
    pub(crate) members: Arc<[usize]>,
    pub(crate) timeout: Duration,
}

impl Mailbox {
    fn channel(&self, number: u32) -> Channel {
        Channel { communicator: self.communicator, number }
    }

    pub(crate) fn send(&self, to: usize, channel: u32, timing: Timing, bytes: &[u8]) -> Result<()> {
        self.mail.send(self.members[to], self.channel(channel), timing, bytes)
    }

    pub(crate) fn try_receive(&self, channel: u32) -> Result<Option<Message>> {
        self.within(channel, Duration::ZERO)
    }

    pub(crate) fn receive(&self, channel: u32) -> Result<Message> {
        let seconds = self.timeout.as_secs_f64();
        self.within(channel, self.timeout)?.ok_or(CommError::NoMessage { channel, seconds })
    }

    /// The sender of what this returns is a rank of the communicator.
    fn within(&self, channel: u32, at_most: Duration) -> Result<Option<Message>> {
        let Some(message) = self.mail.receive(self.channel(channel), at_most)? else { return Ok(None) };
        match self.members.iter().position(|member| *member == message.from) {
            Some(from) => Ok(Some(Message { from, ..message })),
            None => Err(CommError::Mismatch {
                rank: message.from,
                ours: format!("receive from any rank on channel {channel}"),
                theirs: format!("a message on channel {channel} of a communicator that it is not in"),
            }),
        }
    }
}

/// The error of a message to a rank that has left.
pub(crate) fn has_left(to: usize, channel: Channel) -> CommError {
    Cause::Lost(to).error(format!("send to rank {to} on channel {}", channel.number), 0)
}
