//! The initial state of workers and servers: rank 0's values, a checkpoint, or the surviving state after a failure.

use phalanx_tensor::{ParamBucket, ParamStore};

use super::{NOTHING, ParameterServer, WorkerState};
use crate::parallel::{OwnState, SavedState, whole};
use crate::reduction_math::write;
use crate::{Result, ShardingError};
use phalanx_codecs::CodecState;
use phalanx_codecs::buffer::with_singles;

/// The name of a worker's former number in its salvaged state.
const WAS: &str = "was";

/// The prefix of a worker's codec state in its salvaged state.
const CODEC: &str = "codec.";

/// The prefix of the codec state that holds if the repeated step was used.
const MADE: &str = "made.";

/// The former number of a new worker.
pub(super) const NO_FORMER_WORKER: i64 = -1;

/// The name of a server's elements of a bucket in its salvaged state.
fn shard_name(bucket: usize) -> String {
    format!("shard.{bucket}")
}

impl ParameterServer {
    /// Initialises workers and servers with rank 0's values, or with saved or salvaged state. Every rank calls this at
    /// the same place.
    pub(super) fn begin_with(&self, state: &mut WorkerState, store: &ParamStore) -> Result<()> {
        self.receive(state, |_| true)?;
        let loaded = state.loaded.take().map(|loaded| SavedState::new(self.strategy.name, loaded));
        let mut begins = self.server.as_ref().map(|server| server.clocks());
        let (mut shards, mut made) = (None, Vec::new());
        if let Some(mut saved) = loaded {
            let numbers = saved.whole("clock")?;
            let short = || ShardingError::state(self.strategy.name, "`clock` is cut off");
            let (first, rest) = numbers.split_at_checked(2).ok_or_else(short)?;
            state.steps = first[0];
            begins = begins.map(|_| (first[1], rest.to_vec()));
            if saved.has(WAS) {
                state.was = saved.whole(WAS)?.first().map_or(NO_FORMER_WORKER, |was| *was as i64);
            }
            shards = self.salvaged(&mut saved)?;
            let kept = saved.all_of(CODEC);
            if let Some(pusher) = self.pusher.as_ref().filter(|_| !kept.is_empty()) {
                pusher.load_state(kept)?;
            }
            made = saved.all_of(MADE);
        }
        // A rank that only serves keeps its own elements, and never has all buckets at once.
        let mut sent = Vec::new();
        for (at, param) in self.replica.params.iter().enumerate() {
            let mut values = match self.works() {
                true => self.replica.values(at)?,
                false => vec![0.0; param.len()],
            };
            if self.replica.ranks() > 1 {
                self.replica.comm.broadcast(&mut values, 0)?;
            }
            if self.works() {
                write(&self.replica.here(at)?, &values)?;
            }
            sent.push(values[self.server_params[at].owned()].to_vec());
        }
        self.replica.broadcast_buffers(store)?;
        let all = self.replica.comm.all_gather(&[state.steps as i64, state.was])?;
        let mut used = vec![0_i64; self.places.workers];
        if let (Some(server), Some((version, before))) = (&self.server, begins) {
            let clocks = all.as_chunks::<2>().0[..self.places.workers].iter();
            let clocks: Vec<(u64, Option<usize>)> =
                clocks.map(|[steps, was]| (*steps as u64, usize::try_from(*was).ok())).collect();
            let of = server.fill((version, &before), &clocks, shards.as_ref().unwrap_or(&sent))?;
            used = of.into_iter().map(|steps| steps as i64).collect();
        }
        self.take_used(state, made, &self.replica.comm.all_gather(&used)?)?;
        state.was = NO_FORMER_WORKER;
        state.known.fill(NOTHING);
        Ok(self.replica.comm.barrier("parameter servers")?)
    }

    /// Restores which repeated steps each server has `used`, and the codec residuals of these steps. Gradients are not
    /// sent again to servers that have used them.
    fn take_used(&self, state: &mut WorkerState, made: CodecState, used: &[i64]) -> Result<()> {
        let own = self.mail.rank();
        if !self.works() {
            return Ok(());
        }
        for (server, of) in state.used.iter_mut().enumerate() {
            *of = used[self.places.rank_of(server) * self.places.workers + own] as u64;
        }
        let used: Vec<bool> = state.used.iter().map(|used| *used > 0).collect();
        match (&self.pusher, state.made.take()) {
            (Some(pusher), _) if !made.is_empty() => pusher.load_used(made, &used),
            (Some(pusher), Some((_, left))) => {
                pusher.keep(left);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the elements that a server on this rank had at a failure, by bucket; `None` if the state has none.
    fn salvaged(&self, saved: &mut SavedState) -> Result<Option<Vec<Vec<f32>>>> {
        let first = self.server_params.iter().position(ParamBucket::trainable);
        if !first.is_some_and(|first| saved.has(&shard_name(first))) {
            return Ok(None);
        }
        let shard = |(at, server_param): (usize, &ParamBucket)| match server_param.trainable() {
            true => saved.take(&shard_name(at), server_param.owned().len()),
            false => Ok(Vec::new()),
        };
        self.server_params.iter().enumerate().map(shard).collect::<Result<_>>().map(Some)
    }

    /// Returns this rank's state after `steps` steps at a failure; `None` if workers cannot go on without the lost ranks.
    pub(super) fn salvage_at(
        &self,
        steps: u64,
        change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<Option<OwnState>> {
        if self.options.servers == 0 || self.together {
            return Ok(None);
        }
        self.replica.show_own()?;
        let Some(server) = &self.server else {
            let rank = self.mail.rank() as u64;
            let mut saved = vec![("clock".to_owned(), whole(&[steps, 0])), (WAS.to_owned(), whole(&[rank]))];
            // The codec residual of a worker is part of its state.
            let Some(pusher) = &self.pusher else { return Ok(Some(saved)) };
            let state = self.state();
            let left = state.made.as_ref().map_or(&[][..], |(_, left)| left);
            let again = state.made.as_ref().is_some_and(|(step, _)| *step >= steps);
            let (kept, made) = match again {
                // Each server decides if that step counts.
                true => (pusher.state()?, pusher.state_with(left)?),
                false => (pusher.state_with(left)?, CodecState::new()),
            };
            let named = |beginning: &'static str| move |(name, kept)| (format!("{beginning}{name}"), kept);
            saved.extend(kept.into_iter().map(named(CODEC)).chain(made.into_iter().map(named(MADE))));
            return Ok(Some(saved));
        };
        let (version, clocks) = server.close(change)?;
        let numbers: Vec<u64> = [steps, version].into_iter().chain(clocks).collect();
        let mut saved = vec![("clock".to_owned(), whole(&numbers))];
        for (at, server_param) in
            self.server_params.iter().enumerate().filter(|(_, server_param)| server_param.trainable())
        {
            let Some(values) = server_param.owned_values()? else { continue };
            saved.push((shard_name(at), with_singles(&values, |values| values.to_vec())?));
        }
        Ok(Some(saved))
    }
}
