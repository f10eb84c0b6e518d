//! Parameters that leave memory between uses: gathered before a block runs, those of the next meanwhile.

use std::collections::BTreeMap;

use phalanx_collectives::Handle;

use super::route::{Pass, Route, Visit};
use super::{DataParallel, Progress};
use crate::Result;
use crate::buffer::TensorBuffer;

/// Which buckets are on their way, and the way that passes take.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By bucket.
    coming: BTreeMap<usize, Handle<(TensorBuffer, TensorBuffer)>>,
    route: Route,
    /// Blocks that are being run.
    open: Vec<usize>,
    /// Whether everything is to stay.
    held: bool,
    /// Bytes of whole buckets in memory or on their way, and the most there were.
    bytes: usize,
    peak: usize,
}

impl DataParallel {
    /// A pass has come to a block: its parameters are in memory when this returns, and those of the next are on their way.
    pub(super) fn enter(&self, block: &str, pass: Pass) -> Result<()> {
        let Some(block) = self.blocks.get(block) else { return Ok(()) };
        let mut state = self.state();
        if pass == Pass::Backward {
            block.buckets.iter().try_for_each(|at| self.lay_gradients(&mut state, *at))?;
        }
        if state.gathered.held || !self.releases() {
            return Ok(());
        }
        state.gathered.route.visit((pass, block.index));
        state.gathered.open.push(block.index);
        let released = || block.buckets.iter().copied().filter(|at| self.buckets[*at].released);
        released().try_for_each(|at| self.fetch(&mut state, at))?;
        let ahead = if self.shards.is_blocking() { &[] } else { state.gathered.route.ahead() };
        for at in self.next_buckets(&state.gathered.open, ahead) {
            if state.gathered.bytes + self.buckets[at].bytes() > self.gathered_bytes {
                break;
            }
            self.fetch(&mut state, at)?;
        }
        released().try_for_each(|at| self.receive(&mut state, at))
    }

    /// The buckets to be gathered ahead of these visits while some blocks are open, in the order of their use.
    fn next_buckets(&self, open: &[usize], ahead: &[Visit]) -> Vec<usize> {
        let mut next = Vec::new();
        for (_, block) in ahead {
            for at in self.buckets_of(*block) {
                if next.len() == self.prefetch {
                    return next;
                }
                let known = next.contains(at) || open.iter().any(|open| self.uses(*open, *at));
                if self.buckets[*at].released && !known {
                    next.push(*at);
                }
            }
        }
        next
    }

    fn buckets_of(&self, block: usize) -> &[usize] {
        &self.block_buckets[block]
    }

    fn uses(&self, block: usize, bucket: usize) -> bool {
        self.buckets_of(block).contains(&bucket)
    }

    /// A pass has left a block: its parameters leave memory, unless they are used again so soon that they would be gathered
    /// at the next block. (Backward begins with the blocks that forward has ended with.)
    pub(super) fn leave(&self, block: &str) -> Result<()> {
        if !self.releases() {
            return Ok(());
        }
        let Some(block) = self.blocks.get(block) else { return Ok(()) };
        let mut state = self.state();
        if state.gathered.held {
            return Ok(());
        }
        if let Some(at) = state.gathered.open.iter().rposition(|open| *open == block.index) {
            state.gathered.open.remove(at);
        }
        let (mut open, ahead) = (state.gathered.open.clone(), state.gathered.route.ahead());
        open.extend(ahead.first().map(|(_, block)| *block));
        let soon = self.next_buckets(&open, ahead.get(1..).unwrap_or_default());
        // What the next block lacks comes first.
        let lacking = open.iter().flat_map(|block| self.buckets_of(*block)).filter(|at| {
            self.buckets[**at].released
                && state.memory[**at].whole.is_none()
                && !state.gathered.coming.contains_key(*at)
        });
        let wanted = state.gathered.bytes + lacking.map(|at| self.buckets[*at].bytes()).sum::<usize>();
        let crowded = wanted > self.gathered_bytes;
        for at in &block.buckets {
            let used = open.iter().any(|block| self.uses(*block, *at)) || (!crowded && soon.contains(at));
            if self.buckets[*at].released && !used {
                self.release(&mut state, *at)?;
            }
        }
        Ok(())
    }

    /// Starts to gather a bucket, unless it is here or on its way.
    fn fetch(&self, state: &mut Progress, at: usize) -> Result<()> {
        let memory = &state.memory[at];
        let (None, Some(own)) = (&memory.whole, &memory.own) else { return Ok(()) };
        if state.gathered.coming.contains_key(&at) {
            return Ok(());
        }
        let bucket = &self.buckets[at];
        let (whole, part) = (TensorBuffer(bucket.room()?), TensorBuffer(own.clone()));
        state.gathered.coming.insert(at, self.shards.all_gather_into_async(whole, part));
        state.gathered.bytes += bucket.bytes();
        state.gathered.peak = state.gathered.peak.max(state.gathered.bytes);
        Ok(())
    }

    /// Waits for a bucket that is on its way.
    fn receive(&self, state: &mut Progress, at: usize) -> Result<()> {
        if let Some(handle) = state.gathered.coming.remove(&at) {
            let (TensorBuffer(whole), _) = handle.wait()?;
            self.place_whole(state, at, Some(whole))?;
        }
        Ok(())
    }

    /// Lets a bucket's parameters leave memory.
    fn release(&self, state: &mut Progress, at: usize) -> Result<()> {
        if state.memory[at].whole.is_some() {
            self.place_whole(state, at, None)?;
            state.gathered.bytes = state.gathered.bytes.saturating_sub(self.buckets[at].bytes());
        }
        Ok(())
    }

    /// The most bytes of whole buckets that were in memory at once beside this rank's parts, those that were on their way
    /// included. 0 where parameters are not sharded.
    pub fn peak_gathered_bytes(&self) -> u64 {
        self.state().gathered.peak as u64
    }

    /// Brings the parameters that other ranks have updated to this one, and releases what is to be gathered anew. Call it
    /// after the optimizer's step.
    ///
    /// # Errors
    /// Those of communication.
    pub fn finish_update(&self) -> Result<()> {
        if !self.is_sharded() {
            return Ok(());
        }
        let mut state = self.state();
        let mut coming = Vec::new();
        for (at, bucket) in self.buckets.iter().enumerate() {
            if bucket.released {
                // What was gathered before the update, or on the way for a pass that did not come, is old.
                self.receive(&mut state, at)?;
                self.release(&mut state, at)?;
            } else if let (true, Some(whole)) = (bucket.trainable, &state.memory[at].whole) {
                coming.push(self.bring_together(whole.clone()));
            }
        }
        for handle in coming {
            handle.wait()?;
        }
        Ok(())
    }

    /// Brings all parameters into this rank's memory and keeps them there until [`DataParallel::dismiss`]: for evaluating,
    /// sampling and saving. Every rank calls this at the same place.
    ///
    /// # Errors
    /// Those of communication.
    pub fn summon(&self) -> Result<()> {
        if !self.releases() {
            return Ok(());
        }
        let mut state = self.state();
        // That all of it is in memory is what was asked for; it does not count as gathered in flight.
        let peak = state.gathered.peak;
        let released = || (0..self.buckets.len()).filter(|at| self.buckets[*at].released);
        released().try_for_each(|at| self.fetch(&mut state, at))?;
        released().try_for_each(|at| self.receive(&mut state, at))?;
        state.gathered.peak = peak;
        state.gathered.held = true;
        Ok(())
    }

    /// Lets the parameters that were summoned leave memory again.
    ///
    /// # Errors
    /// None that is known.
    pub fn dismiss(&self) -> Result<()> {
        if !self.releases() {
            return Ok(());
        }
        let mut state = self.state();
        state.gathered.held = false;
        let released = (0..self.buckets.len()).filter(|at| self.buckets[*at].released);
        released.into_iter().try_for_each(|at| self.release(&mut state, at))
    }
}
