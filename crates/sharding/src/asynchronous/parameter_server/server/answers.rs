//! The answers of a server to workers that pull or read its values.

use super::{Server, ServerState};
use crate::Result;
use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::parameter_server::encoded::RoundedValues;
use crate::asynchronous::parameter_server::places::TO_WORKER;
use phalanx_codecs::buffer::with_singles;

impl Server {
    /// Sends the values to a worker that has those of version `known`.
    pub(super) fn answer_pull(&self, state: &mut ServerState, worker: usize, known: u64) -> Result<()> {
        let before = state.bytes_sent;
        state.store.pull(worker);
        let version = state.store.version();
        self.round(state, version)?;
        self.remember(state, worker)?;
        if known == version {
            let unchanged = Message::of(Kind::Unchanged, version);
            state.bytes_sent += unchanged.send(&self.mail, worker, TO_WORKER)?;
        } else if state.rounded.is_some() {
            self.send_rounded(state, worker, version)?;
        } else {
            self.send_values(state, worker, version)?;
        }
        state.bytes_answered += state.bytes_sent - before;
        Ok(())
    }

    /// Rounds the values of this version, unless it is done or values are sent exactly.
    fn round(&self, state: &mut ServerState, version: u64) -> Result<()> {
        let Some(codec) = &self.encoding.values else { return Ok(()) };
        if state.rounded.as_ref().is_none_or(|rounded| rounded.version != version) {
            state.rounded = None;
            state.rounded = Some(RoundedValues::of(&self.server_params, version, codec)?);
        }
        Ok(())
    }

    /// Keeps the values that a worker computes with, if stale gradients are corrected.
    fn remember(&self, state: &mut ServerState, worker: usize) -> Result<()> {
        if self.options.compensation > 0.0 && !self.together {
            state.workers[worker].pulled = match (&state.rounded, &self.encoding.values) {
                (Some(rounded), Some(codec)) => rounded.values(&self.server_params, codec)?,
                _ => {
                    let values =
                        self.server_params.iter().map(|server_param| match server_param.owned_values()? {
                            Some(values) => Ok(with_singles(&values, |values| values.to_vec())?),
                            None => Ok(Vec::new()),
                        });
                    values.collect::<Result<_>>()?
                }
            };
        }
        Ok(())
    }

    fn send_rounded(&self, state: &mut ServerState, worker: usize, version: u64) -> Result<()> {
        let Some(rounded) = &state.rounded else { return Ok(()) };
        let mut sent = 0;
        for (at, message) in
            rounded.buckets.iter().enumerate().filter(|(at, _)| self.server_params[*at].trainable())
        {
            let about = (Kind::ValuesCoded, version, at);
            sent += Message::send_coded(&self.mail, worker, TO_WORKER, about, message)?;
        }
        state.bytes_sent += sent;
        Ok(())
    }

    pub(super) fn send_values(&self, state: &mut ServerState, worker: usize, version: u64) -> Result<()> {
        for (at, server_param) in
            self.server_params.iter().enumerate().filter(|(_, server_param)| server_param.trainable())
        {
            let Some(values) = server_param.owned_values()? else { continue };
            let about = (Kind::Values, version, at);
            let sent = with_singles(&values, |values| {
                Message::send_values(&self.mail, worker, TO_WORKER, about, values)
            })??;
            state.bytes_sent += sent;
        }
        Ok(())
    }
}
