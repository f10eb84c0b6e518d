//! Parameters that leave memory between uses: gathered before a block runs, those of the next meanwhile.

use std::collections::BTreeMap;

use phalanx_collectives::Handle;

use phalanx_tensor::{FlatParam, ParamState};

use super::prefetch::{Pass, Prefetch, Visit};
use super::{DataParallel, Progress};
use crate::Result;
use crate::buffer::InPlace;
use crate::strategy::{LEADER, Layout};

/// Which buckets are on their way, and the way that passes take.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By bucket.
    coming: BTreeMap<usize, Handle<(InPlace, InPlace)>>,
    route: Prefetch,
    /// Blocks that are being run.
    pub(super) open: Vec<usize>,
    /// Whether everything is to stay.
    pub(super) unsharded: bool,
    /// Bytes of whole buckets in memory or on their way, and the most there were.
    bytes: usize,
    pub(super) peak: usize,
}

impl DataParallel {
    /// A pass has come to a block: its parameters are in memory when this returns, and those of the next are on their way.
    pub(super) fn enter(&self, block: &str, pass: Pass) -> Result<()> {
        let Some(block) = self.sharded_block(block) else { return Ok(()) };
        let mut state = self.state();
        if state.gathered.unsharded {
            return Ok(());
        }
        state.gathered.route.visit((pass, block));
        state.gathered.open.push(block);
        let sharded = || self.buckets[block].iter().copied().filter(|at| self.is_gathered(*at));
        sharded().try_for_each(|at| self.fetch(&mut state, at))?;
        let ahead = if self.shards.is_blocking() { &[] } else { state.gathered.route.ahead() };
        for at in self.next_buckets(&state.gathered.open, ahead) {
            if state.gathered.bytes + self.params[at].bytes() > self.gathered_bytes {
                break;
            }
            self.fetch(&mut state, at)?;
        }
        sharded().try_for_each(|at| self.receive(&mut state, at))
    }

    /// The number of a block, if there is anything to gather.
    fn sharded_block(&self, name: &str) -> Option<usize> {
        let gathers = self.strategy.layout.parameters == Layout::Sharded;
        self.blocks.get(name).copied().filter(|_| gathers)
    }

    /// The buckets to be gathered ahead of these visits while some blocks are open, in the order of their use.
    fn next_buckets(&self, open: &[usize], ahead: &[Visit]) -> Vec<usize> {
        let mut next = Vec::new();
        for (_, block) in ahead {
            for at in &self.buckets[*block] {
                if next.len() == self.prefetch {
                    return next;
                }
                let known = next.contains(at) || open.iter().any(|open| self.uses(*open, *at));
                if self.is_gathered(*at) && !known {
                    next.push(*at);
                }
            }
        }
        next
    }

    fn uses(&self, block: usize, bucket: usize) -> bool {
        self.buckets[block].contains(&bucket)
    }

    /// A pass has left a block: its parameters leave memory, unless they are used again so soon that they would be gathered
    /// at the next block. (Backward begins with the blocks that forward has ended with.)
    pub(super) fn leave(&self, block: &str) -> Result<()> {
        let Some(block) = self.sharded_block(block) else { return Ok(()) };
        let mut state = self.state();
        if state.gathered.unsharded {
            return Ok(());
        }
        if let Some(at) = state.gathered.open.iter().rposition(|open| *open == block) {
            state.gathered.open.remove(at);
        }
        let (mut open, ahead) = (state.gathered.open.clone(), state.gathered.route.ahead());
        open.extend(ahead.first().map(|(_, block)| *block));
        let soon = self.next_buckets(&open, ahead.get(1..).unwrap_or_default());
        // What the next block lacks comes first.
        let lacking = open.iter().flat_map(|block| &self.buckets[*block]);
        let lacking =
            lacking.map(|at| &self.params[*at]).filter(|param| param.state() == ParamState::Sharded);
        let wanted = state.gathered.bytes + lacking.map(FlatParam::bytes).sum::<usize>();
        let crowded = wanted > self.gathered_bytes;
        for at in &self.buckets[block] {
            let used = open.iter().any(|block| self.uses(*block, *at)) || (!crowded && soon.contains(at));
            if !used {
                self.release(&mut state, *at)?;
            }
        }
        Ok(())
    }

    /// Starts to gather a bucket, unless it is here or on its way.
    pub(super) fn fetch(&self, state: &mut Progress, at: usize) -> Result<()> {
        let param = &self.params[at];
        if param.state() != ParamState::Sharded {
            return Ok(());
        }
        let (full, shard) = param.begin_gather()?;
        let handle = self.shards.all_gather_into_async(InPlace(full), InPlace(shard));
        state.gathered.coming.insert(at, handle);
        state.gathered.bytes += param.bytes();
        state.gathered.peak = state.gathered.peak.max(state.gathered.bytes);
        Ok(())
    }

    /// Waits for a bucket that is on its way.
    pub(super) fn receive(&self, state: &mut Progress, at: usize) -> Result<()> {
        if let Some(handle) = state.gathered.coming.remove(&at) {
            handle.wait()?;
            self.params[at].end_gather()?;
        }
        Ok(())
    }

    /// Lets a bucket's parameters leave memory.
    pub(super) fn release(&self, state: &mut Progress, at: usize) -> Result<()> {
        if self.params[at].state() == ParamState::Gathered {
            self.params[at].reshard()?;
            state.gathered.bytes = state.gathered.bytes.saturating_sub(self.params[at].bytes());
        }
        Ok(())
    }

    /// Brings the parameters that other ranks have updated to this one, and releases what is to be gathered anew.
    pub(super) fn spread_updates(&self) -> Result<()> {
        if !self.is_sharded() {
            return Ok(());
        }
        let mut state = self.state();
        let mut coming = Vec::new();
        for (at, param) in self.params.iter().enumerate() {
            if self.is_gathered(at) {
                // What was gathered before the update, or on the way for a pass that did not come, is old.
                self.receive(&mut state, at)?;
                self.release(&mut state, at)?;
            } else if let (true, Some(full)) = (param.trainable(), param.values()) {
                coming.push(match self.strategy.layout.optimizer {
                    Layout::Leader => self.shards.broadcast_async(InPlace(full), LEADER),
                    Layout::Replicated | Layout::Sharded => {
                        self.shards.all_gather_in_place_async(InPlace(full))
                    }
                });
            }
        }
        for handle in coming {
            handle.wait()?;
        }
        Ok(())
    }
}
