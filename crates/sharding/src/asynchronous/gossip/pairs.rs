//! Pairwise averages without waiting: a thread answers requests and applies received answers.
//!
//! The requesting rank sends its values s. The other rank has x, adds d = (s − x)/2 to it, and answers d. The first
//! rank subtracts d from its current values. The sum over both is kept, even if the values changed in between.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_collectives::{CommError, CommStats, Communicator};

use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::replica::Replica;
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};

/// The channel of the messages.
const CHANNEL: u32 = 1;

/// The interval at which a waiting thread checks that the world is intact.
const LOOK: Duration = Duration::from_millis(100);

/// A rank's part in the averages.
#[derive(Debug)]
pub(super) struct Pairs {
    mail: Communicator,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The rank's parameters by bucket; empty for frozen buckets. The model computes with a copy from the begin of the
    /// step.
    own: Vec<Vec<f32>>,
    /// The number of buckets whose answer is pending.
    owed: usize,
    answered: u64,
    left: usize,
    bytes_sent: u64,
    /// The part of them that answered neighbours.
    bytes_answered: u64,
    bytes_received: u64,
    failed: Option<String>,
}

impl Pairs {
    /// Starts the thread that answers.
    pub(super) fn start(mail: Communicator, replica: &Replica) -> Result<Arc<Self>> {
        let own = Self::of(replica)?;
        let state = Mutex::new(State { own, ..State::default() });
        let pairs = Arc::new(Self { mail, state, changed: Condvar::new() });
        let answering = AnswerThread(pairs.clone());
        let name = format!("phalanx-gossip-{}", pairs.mail.rank());
        let spawned = std::thread::Builder::new().name(name).spawn(move || answering.run());
        spawned
            .map_err(|error| ShardingError::Mesh(format!("cannot start a thread that answers: {error}")))?;
        Ok(pairs)
    }

    fn of(replica: &Replica) -> Result<Vec<Vec<f32>>> {
        let mut own = vec![Vec::new(); replica.params.len()];
        for (at, _) in replica.trainable() {
            own[at] = replica.values(at)?;
        }
        Ok(own)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the rank's parameters to the model.
    pub(super) fn show(&self, replica: &Replica) -> Result<()> {
        let state = self.state();
        for (at, _) in replica.trainable() {
            replica.change_values(at, |values| values.copy_from_slice(&state.own[at]))?;
        }
        Ok(())
    }

    /// Replaces the rank's parameters by the model's.
    pub(super) fn take(&self, replica: &Replica) -> Result<()> {
        self.state().own = Self::of(replica)?;
        Ok(())
    }

    /// Adds `times` the optimizer's change since `before`. `times` is 1, or −1 to undo it.
    pub(super) fn add(&self, replica: &Replica, before: &[Vec<f32>], times: f32) -> Result<()> {
        let mut state = self.state();
        for (at, _) in replica.trainable() {
            let own = &mut state.own[at];
            replica.with_values(at, |values| {
                for ((own, value), before) in own.iter_mut().zip(values).zip(&before[at]) {
                    *own += times * (*value - before);
                }
            })?;
        }
        Ok(())
    }

    /// Requests an average from a random neighbour, unless an answer is pending.
    pub(super) fn ask(&self, replica: &Replica, options: &SyncOptions, step: u64) -> Result<()> {
        let (rank, ranks) = (self.mail.rank(), self.mail.world_size());
        let neighbours = options.topology.sends_to(rank, ranks);
        let mut state = self.state();
        // If the answering thread has ended, this rank must fail, because others wait for its answers.
        self.check(&state)?;
        if neighbours.is_empty() || state.owed > 0 {
            return Ok(());
        }
        let mut drawn = [0.0];
        options.key.step(step).rank(rank).uniform(0, &mut drawn);
        let to = neighbours[((drawn[0] * neighbours.len() as f64) as usize).min(neighbours.len() - 1)];
        for (at, _) in replica.trained() {
            let about = (Kind::Ask, step, at);
            let sent = Message::send_values(&self.mail, to, CHANNEL, about, &state.own[at])?;
            state.bytes_sent += sent;
            state.owed += 1;
        }
        Ok(())
    }

    /// Checks that the answering thread still runs.
    fn check(&self, state: &State) -> Result<()> {
        let Some(reason) = &state.failed else { return Ok(()) };
        // If a rank was lost, the error of the world counts.
        self.mail.check()?;
        Err(ShardingError::state("ad-psgd", reason.clone()))
    }

    /// Waits for all pending answers.
    pub(super) fn settle(&self) -> Result<()> {
        let mut state = self.state();
        while state.owed > 0 {
            self.mail.check()?;
            self.check(&state)?;
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    pub(super) fn answered(&self) -> u64 {
        self.state().answered
    }

    pub(super) fn bytes(&self) -> u64 {
        4 * self.state().own.iter().map(Vec::len).sum::<usize>() as u64
    }

    pub(super) fn stats(&self) -> CommStats {
        let state = self.state();
        CommStats {
            bytes_sent: state.bytes_sent,
            bytes_answered: state.bytes_answered,
            bytes_received: state.bytes_received,
            ..CommStats::default()
        }
    }

    /// Tells all ranks that this one sends no more requests.
    pub(super) fn leave(&self) {
        for rank in 0..self.mail.world_size() {
            // In a broken world no rank waits for this.
            let _ = Message::of(Kind::Leave, 0).send(&self.mail, rank, CHANNEL);
        }
    }
}

/// The thread that answers.
struct AnswerThread(Arc<Pairs>);

impl AnswerThread {
    fn run(self) {
        let Self(pairs) = self;
        loop {
            let heard = match pairs.mail.recv_any(CHANNEL) {
                Err(CommError::NoMessage { .. }) => continue,
                Err(error) => Err(error.into()),
                Ok((from, bytes)) => Message::read(&bytes).and_then(|message| {
                    pairs.state().bytes_received += bytes.len() as u64;
                    hear(&pairs, from, message)
                }),
            };
            match heard {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    pairs.state().failed = Some(error.to_string());
                    pairs.changed.notify_all();
                    return;
                }
            }
        }
    }
}

/// Handles a neighbour's message. Returns true if all ranks have left.
fn hear(pairs: &Pairs, from: usize, message: Message) -> Result<bool> {
    let mut state = pairs.state();
    let at = message.bucket;
    let fits = state.own.get(at).is_some_and(|own| own.len() == message.values.len());
    match message.kind {
        Kind::Leave => {
            state.left += 1;
            return Ok(state.left == pairs.mail.world_size());
        }
        Kind::Ask if fits => {
            let mut differences = message.values;
            for (difference, own) in differences.iter_mut().zip(&mut state.own[at]) {
                *difference = (*difference - *own) / 2.0;
                *own += *difference;
            }
            let about = (Kind::Answer, message.number, at);
            let sent = Message::send_values(&pairs.mail, from, CHANNEL, about, &differences)?;
            state.bytes_sent += sent;
            state.bytes_answered += sent;
        }
        Kind::Answer if fits => {
            state.own[at].iter_mut().zip(message.values).for_each(|(own, difference)| *own -= difference);
            state.owed = state.owed.saturating_sub(1);
            if state.owed == 0 {
                state.answered += 1;
                pairs.changed.notify_all();
            }
        }
        other => {
            let problem = format!("rank {from} says {other:?} of bucket {at} to a neighbour");
            return Err(ShardingError::state("ad-psgd", problem));
        }
    }
    Ok(false)
}
