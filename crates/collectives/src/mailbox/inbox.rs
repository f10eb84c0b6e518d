//! What has arrived at a rank and was not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Channel;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};

/// Messages by channel, each with the rank that it is from, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// This rank in the world.
    own: usize,
    failure: Arc<Failure>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Channel, VecDeque<(usize, Vec<u8>)>>,
    closed: bool,
}

impl Inbox {
    /// That of the world's rank `own`.
    pub(crate) fn new(own: usize, failure: Arc<Failure>) -> Arc<Self> {
        let inbox = Arc::new(Self { own, failure, state: Mutex::default(), arrived: Condvar::new() });
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

    /// Puts a message in; false if the rank takes none any more.
    pub(crate) fn put(&self, from: usize, channel: Channel, bytes: Vec<u8>) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.channels.entry(channel).or_default().push_back((from, bytes));
        self.arrived.notify_all();
        true
    }

    /// Takes the oldest message of a channel, waiting at most so long for one.
    pub(crate) fn take(&self, channel: Channel, at_most: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        loop {
            if self.failure.is_set() {
                drop(state);
                let operation = format!("receive from any rank on channel {}", channel.number);
                return Err(self.broken(operation));
            }
            if let Some(messages) = state.channels.get_mut(&channel) {
                let found = messages.pop_front();
                if messages.is_empty() {
                    state.channels.remove(&channel);
                }
                return Ok(found);
            }
            if state.closed {
                return Err(CommError::Closed);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
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
