//! What has arrived at a rank and was not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Channel;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::simulated::{Clock, Port};

/// Messages by channel, each with the rank that it is from, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// This rank in the world.
    own: usize,
    failure: Arc<Failure>,
    /// What messages come through, if their link is simulated and waited for.
    port: Option<Arc<Port>>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Channel, VecDeque<Message>>,
    closed: bool,
}

#[derive(Debug)]
struct Message {
    from: usize,
    bytes: Vec<u8>,
    /// When it is there, in nanoseconds of the machine's clock.
    due: u64,
}

impl Inbox {
    /// That of the world's rank `own`, whose messages come through `port`, if links are simulated.
    pub(crate) fn new(own: usize, failure: Arc<Failure>, port: Option<Arc<Port>>) -> Arc<Self> {
        // Clocks that only computing moves on know nothing of messages that belong to no operation.
        let port = port.filter(|port| port.clock() == Clock::Wall);
        let inbox = Arc::new(Self { own, failure, port, state: Mutex::default(), arrived: Condvar::new() });
        let waiting = Arc::downgrade(&inbox);
        inbox.failure.on_break(move || {
            if let Some(inbox) = waiting.upgrade() {
                // Whoever waits holds the lock until it sleeps, so that it does not miss this.
                drop(inbox.state());
                inbox.arrived.notify_all();
            }
        });
        inbox
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// This rank in the world.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The error of whoever sends or receives in a broken world.
    pub(crate) fn broken(&self, operation: String) -> CommError {
        self.failure.get().unwrap_or(Cause::Lost(self.own)).error(operation, 0)
    }

    /// When the last of so many bytes for another rank has left this one: 0 without a simulated link.
    pub(crate) fn leave(&self, bytes: usize) -> u64 {
        self.port.as_ref().map_or(0, |port| port.leave(bytes))
    }

    /// Puts a message in that has left its sender at `left`; false if the rank takes none any more.
    pub(crate) fn put(&self, from: usize, channel: Channel, bytes: Vec<u8>, left: u64) -> bool {
        let delayed = self.port.as_ref().filter(|_| from != self.own);
        let due = delayed.map_or(0, |port| port.arrive(left, bytes.len()));
        let mut state = self.state();
        if state.closed {
            return false;
        }
        let queue = state.channels.entry(channel).or_default();
        // Messages of one rank are due in their order; of two, the one that is due first comes first.
        let place = queue.partition_point(|message| message.due <= due);
        queue.insert(place, Message { from, bytes, due });
        self.arrived.notify_all();
        true
    }

    /// Takes the oldest message of a channel that is due, waiting at most so long for one.
    pub(crate) fn take(&self, channel: Channel, at_most: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        loop {
            if self.failure.is_set() {
                drop(state);
                let operation = format!("receive from any rank on channel {}", channel.number);
                return Err(self.broken(operation));
            }
            let mut under_way = None;
            if let Some(messages) = state.channels.get_mut(&channel) {
                let late = messages.front().map_or(0, |message| match message.due {
                    0 => 0,
                    due => due.saturating_sub(Clock::Wall.nanos()),
                });
                if late == 0 {
                    let found = messages.pop_front();
                    if messages.is_empty() {
                        state.channels.remove(&channel);
                    }
                    return Ok(found.map(|Message { from, bytes, .. }| (from, bytes)));
                }
                under_way = Some(Duration::from_nanos(late));
            }
            if state.closed {
                return Err(CommError::Closed);
            }
            let mut left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            left = under_way.map_or(left, |late| left.min(late));
            state = self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes no message any more, and forgets those that are there. Whoever waits for one waits no longer.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.channels.clear();
        self.arrived.notify_all();
    }
}
