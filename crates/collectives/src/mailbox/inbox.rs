//! Messages that have arrived at a rank and were not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Channel, Timing};
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::simulated::{Clock, Port};

/// Messages by channel, each with its sender, in the order of arrival.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// This rank in the world.
    own: usize,
    failure: Arc<Failure>,
    /// The port of messages, if their link is simulated.
    port: Option<Arc<Port>>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Channel, VecDeque<Message>>,
    closed: bool,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its sender.
    pub(crate) from: usize,
    pub(crate) bytes: Vec<u8>,
    /// Its time of arrival in nanoseconds of the ranks' clock; 0 for one that takes no time.
    pub(crate) due: u64,
}

impl Inbox {
    /// The inbox of the world's rank `own`. Messages come through `port` if links are simulated.
    pub(crate) fn new(own: usize, failure: Arc<Failure>, port: Option<Arc<Port>>) -> Arc<Self> {
        let inbox = Arc::new(Self { own, failure, port, state: Mutex::default(), arrived: Condvar::new() });
        let waiting = Arc::downgrade(&inbox);
        inbox.failure.on_break(move || {
            if let Some(inbox) = waiting.upgrade() {
                // A waiting thread holds the lock until it sleeps, so it cannot miss the notification.
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

    /// Returns the error of a send or receive in a broken world.
    pub(crate) fn broken(&self, operation: String) -> CommError {
        self.failure.get().unwrap_or(Cause::Lost(self.own)).error(operation, 0)
    }

    /// Returns the time when the last of `bytes` bytes leaves this rank; 0 of a message that takes no time.
    pub(crate) fn leave(&self, bytes: usize, timing: Timing) -> u64 {
        let takes_time = |port: &&Arc<Port>| port.clock() == Clock::Wall || timing == Timing::Simulated;
        self.port.as_ref().filter(takes_time).map_or(0, |port| port.leave(bytes))
    }

    /// Stores a message that left its sender at `left`; false if the inbox is closed.
    pub(crate) fn put(&self, from: usize, channel: Channel, bytes: Vec<u8>, left: u64) -> bool {
        let delayed = self.port.as_ref().filter(|port| {
            // Only by the machine's clock do all messages take time.
            from != self.own && (left > 0 || port.clock() == Clock::Wall)
        });
        let due = delayed.map_or(0, |port| port.arrive(left, bytes.len()));
        let mut state = self.state();
        if state.closed {
            return false;
        }
        let queue = state.channels.entry(channel).or_default();
        // Messages of one rank are due in their order; among ranks the earliest due comes first.
        let place = queue.partition_point(|message| message.due <= due);
        queue.insert(place, Message { from, bytes, due });
        self.arrived.notify_all();
        true
    }

    /// Takes the oldest message of a channel that is due. Waits up to `at_most` for one.
    pub(crate) fn take(&self, channel: Channel, at_most: Duration) -> Result<Option<Message>> {
        let until = Instant::now() + at_most;
        // Simulated clocks are set instead of waiting.
        let waits = self.port.as_ref().is_some_and(|port| port.clock() == Clock::Wall);
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
                    due if due == 0 || !waits => 0,
                    due => due.saturating_sub(Clock::Wall.nanos()),
                });
                if late == 0 {
                    let found = messages.pop_front();
                    if messages.is_empty() {
                        state.channels.remove(&channel);
                    }
                    return Ok(found);
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

    /// Closes the inbox, drops its messages and ends all waits.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.channels.clear();
        self.arrived.notify_all();
    }
}
