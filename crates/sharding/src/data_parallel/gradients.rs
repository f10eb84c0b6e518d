//! Gradients: reduced while backward still runs, from the last unit to the first.

use std::collections::VecDeque;

use phalanx_collectives::{Handle, ReduceOp};
use phalanx_tensor::Unit;

use super::{DataParallel, LEADER, Progress};
use crate::Result;
use crate::buffer::TensorBuffer;
use crate::strategy::Held;

/// How far the reductions of a step are.
#[derive(Debug, Default)]
pub(super) struct Reductions {
    /// By position in the order of reduction.
    ready: Vec<bool>,
    started: usize,
    /// Started and not taken, by position.
    pending: VecDeque<(usize, Handle<TensorBuffer>)>,
    /// Parts on their way between replicas, by position.
    crossing: Vec<(usize, Handle<TensorBuffer>)>,
    /// Whether more micro-batches come before anything is reduced.
    accumulating: bool,
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
        let Some(at) = self.order.iter().position(|place| self.places[*place].whole.is(unit)) else {
            return Ok(());
        };
        state.reductions.ready.resize(self.order.len(), false);
        state.reductions.ready[at] = true;
        while state.reductions.ready.get(state.reductions.started) == Some(&true) {
            self.start(&mut state)?;
        }
        // What is done meanwhile makes room at once.
        while state.reductions.pending.front().is_some_and(|(_, handle)| handle.is_done()) {
            self.take(&mut state)?;
        }
        Ok(())
    }

    /// Starts the reduction of the next unit in order.
    fn start(&self, state: &mut Progress) -> Result<()> {
        let at = state.reductions.started;
        let grads = TensorBuffer(self.places[self.order[at]].whole.grads_or_zeros()?);
        let handle = match self.strategy.placement.gradients {
            Held::Replicated => self.comm.all_reduce_async(grads, ReduceOp::Sum),
            Held::Sharded => self.shards.reduce_scatter_chunks_async(grads, ReduceOp::Sum),
            Held::Leader => self.shards.reduce_async(grads, ReduceOp::Sum, LEADER),
        };
        state.reductions.pending.push_back((at, handle));
        state.reductions.started += 1;
        Ok(())
    }

    /// Waits for the oldest reduction, and keeps of its gradients what the strategy says.
    fn take(&self, state: &mut Progress) -> Result<()> {
        let Some((at, handle)) = state.reductions.pending.pop_front() else { return Ok(()) };
        let TensorBuffer(grads) = handle.wait()?;
        if !self.is_sharded() {
            return Ok(());
        }
        let place = &self.places[self.order[at]];
        if self.strategy.placement.gradients == Held::Leader && place.own.is_empty() {
            place.whole.set_grads(None)?;
            return Ok(());
        }
        let part = grads.narrow(0, place.range.start, place.range.len())?;
        if self.strategy.placement.gradients == Held::Sharded {
            let part = part.copy()?;
            place.whole.set_grads(None)?;
            match &self.replicas {
                Some(replicas) => {
                    let handle = replicas.all_reduce_async(TensorBuffer(part), ReduceOp::Sum);
                    state.reductions.crossing.push((at, handle));
                }
                None => place.own.set_grads(Some(part))?,
            }
        } else {
            place.own.set_grads(Some(part))?;
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
        while !state.reductions.pending.is_empty() {
            self.take(&mut state)?;
        }
        for (at, handle) in std::mem::take(&mut state.reductions.crossing) {
            let TensorBuffer(part) = handle.wait()?;
            self.places[self.order[at]].own.set_grads(Some(part))?;
        }
        let accumulating = state.reductions.accumulating;
        state.reductions = Reductions { accumulating, ..Reductions::default() };
        Ok(())
    }
}
