//! The messages of a worker to and from servers.

use std::time::Instant;

use phalanx_collectives::CommError;

use super::encoded::PushedBucket;
use super::places::{TO_SERVER, TO_WORKER, range};
use super::{ParameterServer, PendingPull, WorkerState};
use crate::asynchronous::message::{Kind, Message};
use crate::reduction_math::write;
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::with_singles;

impl ParameterServer {
    /// Sends a message to all servers.
    pub(super) fn tell(&self, state: &mut WorkerState, message: &Message) -> Result<()> {
        for server in 0..self.places.servers {
            state.bytes_sent += message.send(&self.mail, self.places.rank_of(server), TO_SERVER)?;
        }
        Ok(())
    }

    /// Sends a bucket's gradients to the servers that have its elements.
    pub(super) fn push(&self, state: &mut WorkerState, at: usize) -> Result<()> {
        let param = &self.replica.params[at];
        let Some(grads) = param.grads()? else { return Ok(()) };
        if let Some(pusher) = &self.pusher {
            let used = state.used.iter().map(|used| *used > 0).collect();
            state.pushing.push(pusher.push((state.attempt, at), &grads, used)?);
            state.pushed[at] = true;
            return Ok(());
        }
        for server in 0..self.places.servers {
            let part = grads.narrow(range(param.len(), server, self.places.servers))?;
            let about = (Kind::Push, state.attempt, at);
            let sent = with_singles(&part, |part| {
                Message::send_values(&self.mail, self.places.rank_of(server), TO_SERVER, about, part)
            })??;
            state.bytes_sent += sent;
        }
        state.pushed[at] = true;
        Ok(())
    }

    /// Sends the gradients that backward did not send.
    pub(super) fn push_rest(&self, state: &mut WorkerState) -> Result<()> {
        let rest: Vec<usize> =
            self.replica.trained().map(|(at, _)| at).filter(|at| !state.pushed[*at]).collect();
        for at in rest.into_iter().rev() {
            if !self.replica.params[at].has_grads() {
                // A rank without samples takes part with zeros.
                drop(self.replica.params[at].begin_reduce(false)?);
                self.replica.params[at].end_reduce(true)?;
            }
            self.push(state, at)?;
        }
        self.wait_for_pushes(state)
    }

    /// Waits for the pushes in the background.
    pub(super) fn wait_for_pushes(&self, state: &mut WorkerState) -> Result<()> {
        for pending in std::mem::take(&mut state.pushing) {
            let PushedBucket { bytes, left } = pending.wait()?;
            state.bytes_sent += bytes;
            state.left.extend(left);
        }
        Ok(())
    }

    /// Requests the values of all servers.
    pub(super) fn ask(&self, state: &mut WorkerState, kind: Kind) -> Result<()> {
        for server in 0..self.places.servers {
            let number = if kind == Kind::Pull { state.known[server] } else { 0 };
            state.bytes_sent +=
                Message::of(kind, number).send(&self.mail, self.places.rank_of(server), TO_SERVER)?;
        }
        let missing =
            self.replica.params.iter().map(|param| usize::from(param.trainable()) * self.places.servers);
        state.coming = Some(PendingPull { missing: missing.collect(), silent: self.places.servers });
        Ok(())
    }

    /// Waits for the next answer of a server while the world is intact.
    pub(super) fn answer(&self, state: &mut WorkerState) -> Result<(usize, Message)> {
        let begun = Instant::now();
        let (rank, bytes) = loop {
            match self.mail.recv_any(TO_WORKER) {
                Ok(message) => break message,
                Err(CommError::NoMessage { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        };
        state.waited += begun.elapsed();
        state.bytes_received += if rank == self.mail.rank() { 0 } else { bytes.len() as u64 };
        let server = self.places.server_on(rank).ok_or_else(|| {
            ShardingError::state(self.strategy.name, format!("rank {rank} answers, and is no server"))
        })?;
        Ok((server, Message::read(&bytes)?))
    }

    /// Waits until the values of these buckets are here.
    pub(super) fn receive(&self, state: &mut WorkerState, wanted: impl Fn(usize) -> bool) -> Result<()> {
        loop {
            let Some(coming) = &mut state.coming else { return Ok(()) };
            if coming.missing.iter().all(|missing| *missing == 0) {
                state.coming = None;
                return Ok(());
            }
            if !coming.missing.iter().enumerate().any(|(at, missing)| *missing > 0 && wanted(at)) {
                return Ok(());
            }
            let (server, message) = self.answer(state)?;
            let Some(coming) = &mut state.coming else { return Ok(()) };
            match message.kind {
                Kind::Unchanged => {
                    coming.silent = coming.silent.saturating_sub(1);
                    coming.missing.iter_mut().for_each(|missing| *missing = missing.saturating_sub(1));
                }
                Kind::Values | Kind::ValuesCoded => {
                    let at = message.bucket;
                    let wrong =
                        || ShardingError::state(self.strategy.name, format!("values of no bucket: {at}"));
                    let param = self.replica.params.get(at).ok_or_else(wrong)?;
                    let part = range(param.len(), server, self.places.servers);
                    let number = message.number;
                    let came = self.encoding.numbers(message, part.len())?;
                    write(&self.replica.here(at)?.narrow(part)?, &came)?;
                    coming.missing[at] = coming.missing[at].saturating_sub(1);
                    state.known[server] = number;
                }
                other => {
                    let problem = format!("server {server} says {other:?} where it owes values");
                    return Err(ShardingError::state(self.strategy.name, problem));
                }
            }
        }
    }
}
