//! Gradients: reduced while backward still runs, from the last bucket to the first.

use std::collections::VecDeque;

use candle_core::Tensor;
use phalanx_collectives::{Handle, ReduceOp};
use phalanx_tensor::Unit;

use super::bucket::fill_from;
use super::{DataParallel, LEADER, Progress};
use crate::Result;
use crate::buffer::TensorBuffer;
use crate::hook::{GradBucket, Pending};
use crate::strategy::Held;

/// How far the reductions of a step are.
#[derive(Debug, Default)]
pub(super) struct Reductions {
    /// By place: whether the unit's gradients are complete.
    ready: Vec<bool>,
    /// How many buckets, in the order of reduction, have started.
    started: usize,
    /// Started and not taken, by bucket.
    running: VecDeque<(usize, Running)>,
    /// Parts on their way between replicas, by bucket.
    crossing: Vec<(usize, Handle<TensorBuffer>)>,
    /// Whether more micro-batches come before anything is reduced.
    accumulating: bool,
}

/// A reduction on its way.
enum Running {
    /// Everybody gets the sum, in place.
    Whole(Handle<TensorBuffer>),
    /// This rank gets its part of the sum, in memory of its own.
    Part(Handle<(TensorBuffer, TensorBuffer)>),
    /// In a hook's way, in place.
    Hooked(GradBucket, Box<dyn Pending>),
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Part(_) => "Part",
            Self::Hooked(..) => "Hooked",
        })
    }
}

impl Running {
    fn is_done(&self) -> bool {
        match self {
            Self::Whole(handle) => handle.is_done(),
            Self::Part(handle) => handle.is_done(),
            Self::Hooked(_, pending) => pending.is_done(),
        }
    }
}

impl DataParallel {
    /// Says whether the next backward is one of several whose gradients are added up: nothing is reduced before the last.
    pub fn accumulate(&self, more: bool) {
        self.state().reductions.accumulating = more;
    }

    /// A unit's gradients are complete.
    pub(super) fn ready(&self, unit: &Unit) -> Result<()> {
        let mut state = self.state();
        if state.reductions.accumulating {
            return Ok(());
        }
        let Some(place) = self.places.get(unit.index()).filter(|place| place.whole.is(unit)) else {
            return Ok(());
        };
        if !place.whole.trainable() {
            return Ok(());
        }
        state.reductions.ready.resize(self.places.len(), false);
        state.reductions.ready[unit.index()] = true;
        while let Some(next) = self.order.get(state.reductions.started) {
            if !state.reductions.ready[self.buckets[*next].members.clone()].iter().all(|ready| *ready) {
                break;
            }
            self.start(&mut state)?;
        }
        // What is done meanwhile makes room at once. Where gradients are sharded there is room for those of a few buckets,
        // as for parameters; backward waits if it is that much faster than the others.
        let crowded = |running: usize| {
            self.strategy.placement.gradients == Held::Sharded && running > self.prefetch.max(1)
        };
        while state.reductions.running.front().is_some_and(|(_, running)| running.is_done())
            || crowded(state.reductions.running.len())
        {
            self.take(&mut state)?;
        }
        Ok(())
    }

    /// Gives the units of a bucket memory for their gradients, in one buffer, if they have none yet.
    pub(super) fn lay_gradients(&self, state: &mut Progress, index: usize) -> Result<()> {
        let bucket = &self.buckets[index];
        let members = &self.places[bucket.members.clone()];
        let alone = members.len() == 1;
        if alone || !bucket.trainable || members.iter().any(|place| place.whole.has_grads()) {
            return Ok(());
        }
        let grads = bucket.room()?;
        for place in members {
            place.whole.set_grads(Some(grads.narrow(0, place.lies.start, place.lies.len())?))?;
            // Unwritten: what comes first overwrites, and what nothing comes to is zero.
            place.whole.zero_grads();
        }
        state.memory[index].grads = Some(grads);
        Ok(())
    }

    /// All gradients of a bucket in one buffer, zeros where there are none.
    fn gradients(&self, state: &mut Progress, index: usize) -> Result<Tensor> {
        let bucket = &self.buckets[index];
        let members = &self.places[bucket.members.clone()];
        if let [place] = members {
            return Ok(place.whole.grads_or_zeros()?);
        }
        let parts = members.iter().map(|place| Ok(place.whole.grads_or_zeros()?));
        if let Some(grads) = &state.memory[index].grads {
            // Zeros that are owed are written.
            parts.collect::<Result<Vec<_>>>()?;
            return Ok(grads.clone());
        }
        // Gradients that came without their block being run have memory of their own.
        let grads = bucket.room()?;
        fill_from(&grads, parts)?;
        for place in members {
            place.whole.set_grads(Some(grads.narrow(0, place.lies.start, place.lies.len())?))?;
        }
        state.memory[index].grads = Some(grads.clone());
        Ok(grads)
    }

    /// Starts the reduction of the next bucket in order.
    fn start(&self, state: &mut Progress) -> Result<()> {
        let index = self.order[state.reductions.started];
        let bucket = &self.buckets[index];
        let whole = self.gradients(state, index)?;
        let scattered = self.strategy.placement.gradients == Held::Sharded;
        let comm = if scattered { &self.shards } else { &self.comm };
        let running = if let Some(hook) = &self.hook {
            let wanted = if scattered { bucket.range.clone() } else { 0..bucket.len };
            let bucket = GradBucket { index, gradients: whole, wanted };
            Running::Hooked(bucket.clone(), hook.start(bucket, comm)?)
        } else if scattered {
            // The memory of the last step's, which the optimizer has used.
            let part = match &state.memory[index].own_grads {
                Some(part) => part.clone(),
                None => bucket.own_room()?,
            };
            state.memory[index].own_grads = Some(part.clone());
            let (whole, part) = (TensorBuffer(whole), TensorBuffer(part));
            Running::Part(comm.reduce_scatter_into_async(whole, part, ReduceOp::Sum))
        } else if self.strategy.placement.gradients == Held::Leader {
            Running::Whole(comm.reduce_async(TensorBuffer(whole), ReduceOp::Sum, LEADER))
        } else {
            Running::Whole(comm.all_reduce_async(TensorBuffer(whole), ReduceOp::Sum))
        };
        state.reductions.running.push_back((index, running));
        state.reductions.started += 1;
        Ok(())
    }

    /// Waits for the oldest reduction, and keeps of its gradients what the strategy says.
    fn take(&self, state: &mut Progress) -> Result<()> {
        let Some((index, running)) = state.reductions.running.pop_front() else { return Ok(()) };
        let bucket = &self.buckets[index];
        let narrow = |whole: &Tensor| whole.narrow(0, bucket.range.start, bucket.range.len());
        let part = match running {
            Running::Whole(handle) => narrow(&handle.wait()?.0)?,
            Running::Part(handle) => handle.wait()?.1.0,
            Running::Hooked(bucket, pending) => {
                pending.wait()?;
                let part = narrow(&bucket.gradients)?;
                if bucket.is_scattered() { part.force_contiguous()? } else { part }
            }
        };
        if !self.is_sharded() {
            return Ok(());
        }
        let kept = match self.strategy.placement.gradients {
            Held::Replicated => true,
            Held::Sharded => false,
            Held::Leader => self.shards.rank() == LEADER,
        };
        if !kept {
            for place in &self.places[bucket.members.clone()] {
                place.whole.set_grads(None)?;
            }
            state.memory[index].grads = None;
        }
        if let (Held::Sharded, Some(replicas)) = (self.strategy.placement.gradients, &self.replicas) {
            let handle = replicas.all_reduce_async(TensorBuffer(part), ReduceOp::Sum);
            state.reductions.crossing.push((index, handle));
            return Ok(());
        }
        self.keep_gradients(index, &part)
    }

    /// Gives this rank's units their parts of a bucket's gradients.
    fn keep_gradients(&self, index: usize, part: &Tensor) -> Result<()> {
        let mut at = 0;
        for place in &self.places[self.buckets[index].members.clone()] {
            place.own.set_grads(Some(part.narrow(0, at, place.range.len())?))?;
            at += place.range.len();
        }
        Ok(())
    }

    /// Waits until the gradients of all units are summed over the ranks; starts those that backward did not
    /// report (a rank without samples still takes part, with zeros). Call it once a step, before the optimizer.
    ///
    /// # Errors
    /// Those of communication.
    pub fn finish_gradients(&self) -> Result<()> {
        let mut state = self.state();
        while state.reductions.started < self.order.len() {
            self.start(&mut state)?;
        }
        while !state.reductions.running.is_empty() {
            self.take(&mut state)?;
        }
        for (index, handle) in std::mem::take(&mut state.reductions.crossing) {
            let TensorBuffer(part) = handle.wait()?;
            self.keep_gradients(index, &part)?;
        }
        let accumulating = state.reductions.accumulating;
        state.reductions = Reductions { accumulating, ..Reductions::default() };
        Ok(())
    }
}
