//! Distributes parameters at the start, gathers them before a block runs, and prefetches those of the next block.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use phalanx_collectives::Handle;
use phalanx_tensor::backend::Upload;
use phalanx_tensor::{Key, ParamBucket, ParamState};

use super::prefetch::{BlockVisit, Pass, Prefetch};
use super::{DataParallel, Progress};
use crate::Result;
use crate::background::Pending;
use crate::strategy::Partition;
use phalanx_codecs::PendingWork;
use phalanx_codecs::buffer::InPlace;

/// The gathered buckets, the pending gathers, and the predicted order of blocks.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By bucket.
    coming: BTreeMap<usize, PendingGather>,
    /// The block order of training steps and of passes outside of steps, such as evaluation.
    routes: [Prefetch; 2],
    /// The blocks that run now.
    pub(super) open: Vec<usize>,
    /// True if all parameters stay gathered.
    pub(super) unsharded: bool,
    /// The peak bytes of buckets that were gathered or being gathered for blocks.
    pub(super) peak: usize,
}

/// A bucket that is being gathered.
#[derive(Debug)]
enum PendingGather {
    /// An exact all-gather. The upload of this rank's shard precedes it if the shard is kept on the host.
    Exact(Handle<(InPlace, InPlace)>, Upload),
    /// An upload from this rank's host, which has the whole bucket.
    Uploaded(Upload),
    /// Rounded to integers with scales.
    Rounded(Pending<PendingWork>),
}

impl DataParallel {
    /// Assigns this rank its elements of every bucket and initialises missing values. If parameters leave memory
    /// between uses, only this rank's elements are initialised.
    pub(super) fn fill(&self, key: Key) -> Result<()> {
        let (layout, of) = (self.strategy.layout, (self.shards.rank(), self.shards.world_size()));
        for param in &self.params {
            param.set_owned(layout.owned(param.len(), of))?;
            let scatters = layout.scatters();
            let stays = (scatters || layout.keeps_gradients(of.0)) && !param.is_offloaded();
            if param.trainable() && stays {
                // Long-lived memory is allocated before temporary memory, to avoid fragmentation.
                param.reserve_grads(scatters)?;
            }
            match (param.state(), self.leaves_memory(param)) {
                (ParamState::Absent, true) => param.fill_shard(param.initial_values(key, param.owned())?)?,
                (ParamState::Absent, false) => param.fill(param.initial_values(key, 0..param.len())?)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Broadcasts the parameters in memory from rank 0, then keeps the elements that the strategy assigns to this rank.
    pub(super) fn broadcast_params(&self) -> Result<()> {
        let mut state = self.state();
        (0..self.params.len()).try_for_each(|at| self.receive(&mut state, at))?;
        for param in &self.params {
            let Some(full) = param.values() else { continue };
            if self.comm.world_size() > 1 {
                self.comm.broadcast(&mut InPlace::new(full)?, 0)?;
            }
            if self.leaves_memory(param) {
                param.shard()?;
            }
        }
        state.gathered = Gathered::default();
        Ok(())
    }

    /// Gathers the parameters of the block that a pass enters, and starts to prefetch the next ones.
    pub(super) fn enter(&self, block: &str, pass: Pass) -> Result<()> {
        let Some((block, mut state)) = self.gathers_for(block) else { return Ok(()) };
        let outside = usize::from(state.step.is_none());
        state.gathered.routes[outside].visit((pass, block));
        state.gathered.open.push(block);
        self.buckets[block].iter().try_for_each(|at| self.fetch(&mut state, *at))?;
        let ahead = if self.shards.is_blocking() { &[] } else { state.gathered.routes[outside].ahead() };
        for at in self.next_buckets(&state.gathered.open, ahead) {
            if self.unsharded_bytes() + self.params[at].bytes() > self.options.gathered_bytes {
                break;
            }
            self.fetch(&mut state, at)?;
        }
        state.gathered.peak = state.gathered.peak.max(self.unsharded_bytes());
        self.buckets[block].iter().try_for_each(|at| self.receive(&mut state, *at))
    }

    /// Returns the number of a block and the state of the step; `None` if blocks gather nothing now.
    fn gathers_for(&self, block: &str) -> Option<(usize, MutexGuard<'_, Progress>)> {
        let state = self.blocks.get(block).map(|block| (*block, self.state()));
        state.filter(|(_, state)| !state.gathered.unsharded)
    }

    /// Returns the buckets to prefetch for these visits, in the order of their use.
    fn next_buckets(&self, open: &[usize], ahead: &[BlockVisit]) -> Vec<usize> {
        let mut next = Vec::new();
        for at in ahead.iter().flat_map(|(_, block)| &self.buckets[*block]) {
            if next.len() == self.options.prefetch {
                break;
            }
            if self.params[*at].state() != ParamState::Full && !next.contains(at) && !self.used(open, *at) {
                next.push(*at);
            }
        }
        next
    }

    /// True if one of these blocks has parameters in the bucket.
    fn used(&self, blocks: &[usize], bucket: usize) -> bool {
        blocks.iter().any(|block| self.buckets[*block].contains(&bucket))
    }

    /// Returns the bytes of the buckets that are gathered or being gathered, without their shards.
    fn unsharded_bytes(&self) -> usize {
        let passing =
            |param: &&ParamBucket| matches!(param.state(), ParamState::Gathering | ParamState::Gathered);
        self.params.iter().filter(passing).map(ParamBucket::bytes).sum()
    }

    /// Frees the parameters of the block that a pass leaves, unless the next block would gather them again. Backward
    /// begins with the last blocks of forward.
    pub(super) fn leave(&self, block: &str) -> Result<()> {
        let Some((block, mut state)) = self.gathers_for(block) else { return Ok(()) };
        let outside = usize::from(state.step.is_none());
        let Gathered { open, routes, .. } = &mut state.gathered;
        if let Some(at) = open.iter().rposition(|open| *open == block) {
            open.remove(at);
        }
        let (mut open, ahead) = (open.clone(), routes[outside].ahead());
        open.extend(ahead.first().map(|(_, block)| *block));
        let soon = self.next_buckets(&open, ahead.get(1..).unwrap_or_default());
        // The missing buckets of the next block are gathered first.
        let lacking = open.iter().flat_map(|block| &self.buckets[*block]).map(|at| &self.params[*at]);
        let lacking = lacking.filter(|param| param.state() == ParamState::Sharded).map(ParamBucket::bytes);
        let crowded = self.unsharded_bytes() + lacking.sum::<usize>() > self.options.gathered_bytes;
        for at in &self.buckets[block] {
            if !self.used(&open, *at) && (crowded || !soon.contains(at)) {
                self.release(*at)?;
            }
        }
        Ok(())
    }

    /// Starts to gather a bucket for a block that computes with it, unless it is gathered or pending.
    fn fetch(&self, state: &mut Progress, at: usize) -> Result<()> {
        match &self.weights {
            None => self.fetch_exact(state, at),
            Some(_) if self.params[at].state() != ParamState::Sharded => Ok(()),
            Some(weights) => {
                let param = &self.params[at];
                let (full, mut shard) = param.begin_gather()?;
                if param.is_offloaded() {
                    let (uploaded, sent) = param.begin_upload(&shard)?;
                    sent.wait()?;
                    shard = uploaded;
                }
                state.gathered.coming.insert(at, PendingGather::Rounded(weights.start(full, shard)));
                Ok(())
            }
        }
    }

    /// Starts to gather the exact values of a bucket, unless it is gathered or pending.
    fn fetch_exact(&self, state: &mut Progress, at: usize) -> Result<()> {
        if self.params[at].state() == ParamState::Sharded {
            let param = &self.params[at];
            let (full, shard) = param.begin_gather()?;
            let gather = |shard| {
                let shards = self.shards.about(&self.labels[at]);
                Ok(shards.all_gather_into_async(InPlace::new(full.clone())?, shard)) as Result<_>
            };
            let coming = match (param.is_offloaded(), self.has_all()) {
                (false, _) => PendingGather::Exact(gather(InPlace::new(shard)?)?, Upload::ready()),
                (true, true) => PendingGather::Uploaded(full.begin_upload_from(&shard)?),
                (true, false) => {
                    let (shard, sent) = param.begin_upload(&shard)?;
                    PendingGather::Exact(gather(InPlace::moving_in(shard)?)?, sent)
                }
            };
            state.gathered.coming.insert(at, coming);
        }
        Ok(())
    }

    /// True if this rank keeps all of the parameters that it computes with.
    fn has_all(&self) -> bool {
        self.strategy.layout.parameters == Partition::Replicated || self.shards.world_size() == 1
    }

    /// Gathers the exact values of all parameters.
    pub(super) fn gather_all(&self, state: &mut Progress) -> Result<()> {
        if self.weights.is_some() {
            // The values that blocks computed with were rounded.
            (0..self.params.len()).try_for_each(|at| self.receive(state, at))?;
            (0..self.params.len()).try_for_each(|at| self.release(at))?;
        }
        (0..self.params.len()).try_for_each(|at| self.fetch_exact(state, at))?;
        (0..self.params.len()).try_for_each(|at| self.receive(state, at))
    }

    /// Waits for a pending gather.
    pub(super) fn receive(&self, state: &mut Progress, at: usize) -> Result<()> {
        match (state.gathered.coming.remove(&at), &self.weights) {
            (None, _) => return Ok(()),
            (Some(PendingGather::Exact(handle, shard)), _) => {
                let _buffers = handle.wait()?;
                shard.wait()?;
            }
            (Some(PendingGather::Uploaded(values)), _) => values.wait()?,
            (Some(PendingGather::Rounded(pending)), Some(weights)) => weights.wait(pending)?,
            (Some(PendingGather::Rounded(pending)), None) => pending.wait()?.arrive()?,
        }
        Ok(self.params[at].end_gather()?)
    }

    /// Frees a bucket's parameters if they were gathered.
    pub(super) fn release(&self, at: usize) -> Result<()> {
        match self.params[at].state() {
            ParamState::Gathered => Ok(self.params[at].reshard()?),
            _ => Ok(()),
        }
    }
}
