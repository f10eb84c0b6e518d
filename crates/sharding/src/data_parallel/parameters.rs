//! Parameters that leave memory between uses: gathered before a block runs, the next block's meanwhile.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_collectives::Handle;
use phalanx_tensor::host::copy_host;

use super::{DataParallel, Place, Progress};
use crate::Result;
use crate::buffer::TensorBuffer;
use crate::strategy::Held;

/// Blocks whose parameters are gathered ahead of their use.
const AHEAD: usize = 1;

/// Which way a pass goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// Which units are on their way, and in which order blocks run, as the last passes have shown.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By place.
    coming: BTreeMap<usize, Handle<TensorBuffer>>,
    forward: Route,
    backward: Route,
    /// Whether everything is to stay.
    held: bool,
}

/// The blocks that a pass goes through.
#[derive(Debug, Default)]
struct Route {
    /// Of the last whole pass.
    known: Vec<String>,
    /// Of this pass, so far.
    here: Vec<String>,
}

impl Route {
    /// Notes that the pass has come to a block; the blocks that followed the last time.
    fn visit(&mut self, block: &str, first: bool) -> Vec<String> {
        if first {
            self.known = std::mem::take(&mut self.here);
        }
        self.here.push(block.to_owned());
        let at = self.here.len();
        // Only as long as the pass goes the known way.
        let same = self.known.get(..at) == Some(&self.here[..]);
        if same { self.known.iter().skip(at).take(AHEAD).cloned().collect() } else { Vec::new() }
    }
}

impl DataParallel {
    fn releases(&self) -> bool {
        self.strategy.placement.parameters == Held::Sharded
    }

    fn of_block<'a>(&'a self, block: &'a str) -> impl Iterator<Item = usize> + 'a {
        let places = self.places.iter().enumerate();
        places.filter(move |(_, place)| place.released && place.whole.block() == block).map(|(at, _)| at)
    }

    /// A pass has come to a block: its parameters are in memory when this returns, and those of the next are on their way.
    pub(super) fn enter(&self, block: &str, pass: Pass) -> Result<()> {
        if !self.releases() {
            return Ok(());
        }
        let mut state = self.state();
        if state.gathered.held {
            return Ok(());
        }
        let route = match pass {
            Pass::Forward => &state.gathered.forward,
            Pass::Backward => &state.gathered.backward,
        };
        // A pass begins where the other one has ended, or where its own has come to its first block again.
        let again = route.here.first().is_some_and(|first| first == block);
        let route = match pass {
            Pass::Forward => &mut state.gathered.forward,
            Pass::Backward => &mut state.gathered.backward,
        };
        let next = route.visit(block, again);
        for at in self.of_block(block) {
            self.fetch(&mut state, at)?;
            self.receive(&mut state, at)?;
        }
        for block in next {
            for at in self.of_block(&block) {
                self.fetch(&mut state, at)?;
            }
        }
        Ok(())
    }

    /// A pass has left a block: its parameters leave memory.
    pub(super) fn leave(&self, block: &str, pass: Pass) -> Result<()> {
        if !self.releases() {
            return Ok(());
        }
        let state = self.state();
        if state.gathered.held {
            return Ok(());
        }
        // Backward begins with the block that forward has ended with.
        let route = &state.gathered.forward;
        let turns =
            route.known.len() == route.here.len() && route.known.last().is_some_and(|last| last == block);
        if pass == Pass::Forward && turns {
            return Ok(());
        }
        for at in self.of_block(block) {
            self.places[at].whole.set_values(None)?;
        }
        Ok(())
    }

    /// Starts to gather a unit, unless it is here or on its way.
    fn fetch(&self, state: &mut Progress, at: usize) -> Result<()> {
        let place = &self.places[at];
        if place.whole.values().is_some() || state.gathered.coming.contains_key(&at) {
            return Ok(());
        }
        let whole = Self::room(place)?;
        if let Some(own) = place.own.values() {
            copy_host(&whole.narrow(0, place.range.start, place.range.len())?, &own)?;
        }
        let handle = self.shards.all_gather_chunks_async(TensorBuffer(whole));
        state.gathered.coming.insert(at, handle);
        Ok(())
    }

    fn room(place: &Place) -> Result<Tensor> {
        Ok(Tensor::zeros(place.whole.len(), place.whole.dtype(), place.whole.device())?)
    }

    /// Waits for a unit that is on its way.
    fn receive(&self, state: &mut Progress, at: usize) -> Result<()> {
        if let Some(handle) = state.gathered.coming.remove(&at) {
            let TensorBuffer(whole) = handle.wait()?;
            self.places[at].whole.set_values(Some(whole))?;
        }
        Ok(())
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
        for (at, place) in self.places.iter().enumerate() {
            if place.released {
                // What was gathered before the update, or on the way for a pass that did not come, is old.
                self.receive(&mut state, at)?;
                place.whole.set_values(None)?;
            } else if let (true, Some(whole)) = (place.whole.trainable(), place.whole.values()) {
                coming.push(self.bring_together(whole));
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
        let released = || (0..self.places.len()).filter(|at| self.places[*at].released);
        released().try_for_each(|at| self.fetch(&mut state, at))?;
        released().try_for_each(|at| self.receive(&mut state, at))?;
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
        for place in self.places.iter().filter(|place| place.released) {
            place.whole.set_values(None)?;
        }
        Ok(())
    }
}
