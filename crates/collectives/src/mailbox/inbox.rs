//! Messages that have arrived at a rank and were not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Channel;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::simulated::{Clock, Port};

/// Messages by channel, each with its sender, in the order of arrival.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// This rank in the world.
    own: usize,
    failure: Arc<Failure>,
    /// The port of messages, if their link is simulated with real waiting.
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
    /// Its time of arrival, in nanoseconds of the machine's clock.
    due: u64,
}

impl Inbox {
    /// The inbox of the world's rank `own`. Messages come through `port` if links are simulated.
    pub(crate) fn new(own: usize, failure: Arc<Failure>, port: Option<Arc<Port>>) -> Arc<Self> {
        // CPU-time clocks do not time messages that belong to no operation.
        let port = port.filter(|port| port.clock() == Clock::Wall);
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

    /// Returns the time when the last of `bytes` bytes leaves this rank; 0 without a simulated link.
    pub(crate) fn leave(&self, bytes: usize) -> u64 {
        self.port.as_ref().map_or(0, |port| port.leave(bytes))
    }

    /// Stores a message that left its sender at `left`; false if the inbox is closed.
    pub(crate) fn put(&self, from: usize, channel: Channel, bytes: Vec<u8>, left: u64) -> bool {
        let delayed = self.port.as_ref().filter(|_| from != self.own);
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

    /// Closes the inbox, drops its messages and ends all waits.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.channels.clear();
        self.arrived.notify_all();
    }
}
