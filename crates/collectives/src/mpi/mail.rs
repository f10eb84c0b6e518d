//! Messages from any rank by MPI: found by probing, on a communicator of MPI that nothing else uses.
//!
//! Senders and receivers call MPI; no thread waits in it. So a message may make progress only while its sender is in some call of
//! MPI.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::partition::part_of;
use super::raw::{Comm, DATA, HEADER, SendRequest};
use super::world::World;
use crate::error::{CommError, Result};
use crate::mailbox::{Channel, Inbox, LONGEST, Mail, Message, Timing};

/// Bytes before the pieces of a message: the communicator, the channel and the length.
const ENVELOPE: usize = 16;

/// Messages that may be under way; further sends wait. The limit is high because a receiver in an operation of all ranks takes no
/// messages, and that operation may wait for the sender.
const SENDS: usize = 1 << 14;

/// The longest wait of a sender for room, and of a receiver for a message.
pub(super) const MAIL_TIMEOUT: Duration = Duration::from_secs(600);

/// The first and the longest pause between two polls.
const BACKOFF: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// One rank's mail.
pub(super) struct MpiMail {
    world: Arc<World>,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
}

struct State {
    /// Messages that MPI has not finished sending, each with its envelope, the oldest first.
    sends: VecDeque<Vec<SendRequest>>,
    comm: Comm,
}

/// A pause that grows with each poll.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(BACKOFF[0])
    }

    fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (2 * self.0).min(BACKOFF[1]);
    }
}

impl State {
    /// Forgets messages that MPI has finished.
    fn forget_sent(&mut self) -> Result<()> {
        while let Some(oldest) = self.sends.front_mut() {
            for request in oldest {
                if !request.is_done()? {
                    return Ok(());
                }
            }
            self.sends.pop_front();
        }
        Ok(())
    }

    /// Puts received messages into the inbox.
    fn take_in(&mut self, inbox: &Inbox, piece: usize) -> Result<()> {
        while let Some(from) = self.comm.probe(HEADER)? {
            let mut envelope = [0; ENVELOPE];
            self.comm.receive(&mut envelope, from, HEADER)?;
            let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| envelope[at + i]));
            let channel = Channel { communicator: short(0), number: short(4) };
            let length = u64::from_le_bytes(std::array::from_fn(|i| envelope[8 + i])) as usize;
            if length > LONGEST {
                let problem = format!(
                    "rank {from} announced a message of {length} bytes; at most {LONGEST} are possible"
                );
                return Err(CommError::Argument { operation: "mail over MPI", problem });
            }
            let mut bytes = vec![0; length];
            for round in 0..length.div_ceil(piece) {
                self.comm.receive(&mut bytes[part_of(0..length, round, piece)], from, DATA)?;
            }
            inbox.put(from, channel, bytes, 0);
        }
        self.forget_sent()
    }
}

impl MpiMail {
    /// The mail of this rank of `comm`, on that communicator alone.
    pub(super) fn new(world: Arc<World>, comm: Comm) -> Self {
        let inbox = Inbox::new(comm.rank, Arc::default(), None);
        Self { world, inbox, state: Mutex::new(State { sends: VecDeque::new(), comm }) }
    }

    /// Locks MPI for one thread: the thread that finds a message by probing must receive it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self) -> Result<()> {
        self.world.check_failure()?;
        self.state().take_in(&self.inbox, self.world.settings.piece)
    }
}

impl Mail for MpiMail {
    fn send(&self, to: usize, channel: Channel, _: Timing, bytes: &[u8]) -> Result<()> {
        self.world.check_failure()?;
        if to == self.inbox.own() {
            self.inbox.put(to, channel, bytes.to_vec(), 0);
            return Ok(());
        }
        let mut envelope = Vec::with_capacity(ENVELOPE);
        envelope.extend_from_slice(&channel.communicator.to_le_bytes());
        envelope.extend_from_slice(&channel.number.to_le_bytes());
        envelope.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        let (begun, mut backoff, step) = (Instant::now(), Backoff::new(), self.world.settings.piece);
        loop {
            let mut state = self.state();
            // Two ranks that have sent each other many messages both make room by receiving.
            state.take_in(&self.inbox, step)?;
            if state.sends.len() < SENDS {
                let mut requests = vec![state.comm.send(envelope, to, HEADER)?];
                for round in 0..bytes.len().div_ceil(step) {
                    let piece = bytes[part_of(0..bytes.len(), round, step)].to_vec();
                    requests.push(state.comm.send(piece, to, DATA)?);
                }
                state.sends.push_back(requests);
                return Ok(());
            }
            drop(state);
            if begun.elapsed() > MAIL_TIMEOUT {
                return Err(CommError::NoRoom { rank: to, seconds: MAIL_TIMEOUT.as_secs_f64() });
            }
            backoff.sleep();
        }
    }

    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<Message>> {
        let (until, mut backoff) = (Instant::now() + at_most, Backoff::new());
        loop {
            self.take_in()?;
            let found = self.inbox.take(channel, Duration::ZERO)?;
            if found.is_some() || Instant::now() >= until {
                return Ok(found);
            }
            backoff.sleep();
        }
    }

    /// Does nothing: the mail ends with the last communicator that has it.
    fn close(&self) {}
}

impl Drop for MpiMail {
    /// Delivers all messages: ranks receive until all messages of all ranks were sent.
    fn drop(&mut self) {
        let (piece, mut backoff) = (self.world.settings.piece, Backoff::new());
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.world.check_failure().is_err() || !state.comm.ends_well() {
            return;
        }
        let mut barrier = None;
        loop {
            if state.take_in(&self.inbox, piece).is_err() {
                return;
            }
            if state.sends.is_empty() && barrier.is_none() {
                match state.comm.begin_barrier() {
                    Ok(begun) => barrier = Some(begun),
                    Err(_) => return,
                }
            }
            if let Some(begun) = &mut barrier
                && begun.is_done().unwrap_or(true)
            {
                return;
            }
            backoff.sleep();
        }
    }
}
