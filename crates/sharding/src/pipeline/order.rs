//! The order of a training's blocks: one in which values flow forward in all of its passes.

use std::sync::Arc;

use phalanx_tensor::TracedPass;

use super::division::DividedPass;
use crate::{Result, ShardingError};

/// The operations that a block counts at least: it runs some ops, also without products.
const LEAST: u64 = 1;

/// The trained blocks that may run again on results of later ones: a table that is the head, too.
const MOST_AGAIN: usize = 2;

/// The costs by which a model is cut.
#[derive(Debug, Clone, PartialEq)]
pub struct CutCosts {
    /// The cost of each block, in order.
    pub blocks: Vec<f64>,
    /// The cost of a byte that goes from chunk to chunk, for its sender and for its receiver.
    pub byte: f64,
}

/// The last chunk of the first blocks of a model, cut as well as they can be.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// The cost of the dearest chunk.
    dearest: f64,
    /// The bytes that go from chunk to chunk.
    sent: u64,
    /// The first place of the last chunk.
    first: usize,
}

impl Cut {
    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let by_cost = self.dearest.total_cmp(&other.dearest);
        by_cost.then(self.sent.cmp(&other.sent)).then(self.first.cmp(&other.first))
    }
}

/// A block at its place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PlacedBlock {
    block: Arc<str>,
    /// The operations of its calls in all passes.
    operations: u64,
    /// True if a pass trains it.
    is_trained: bool,
}

/// The blocks of the passes of a training in an order in which values flow forward. A block that runs again on results of later ones,
/// such as a table that is the head, too, has a second place, and so has a network that is not trained and looks at several things.
#[derive(Debug, Clone)]
pub struct BlockOrder {
    places: Vec<PlacedBlock>,
    /// By pass and call, the place.
    calls: Vec<Vec<usize>>,
}

impl BlockOrder {
    /// Finds the order of the blocks of passes: the phases of a step, and an evaluation.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if trained blocks run again on results of later ones, as a network does that reads its own output, or a
    /// parameter lies outside of blocks.
    pub fn of(passes: &[&TracedPass]) -> Result<Self> {
        let mut order = Self { places: Vec::new(), calls: Vec::new() };
        for pass in passes {
            let calls = order.place(pass);
            for (call, place) in pass.calls.iter().zip(&calls) {
                order.places[*place].operations += call.operations.max(LEAST);
            }
            let trained = pass.values.iter().filter(|value| value.param.is_some() && value.needs_grad);
            for call in trained.filter_map(|value| value.call) {
                order.places[calls[call]].is_trained = true;
            }
            order.calls.push(calls);
        }
        let again: Vec<&str> = (0..order.places.len())
            .filter(|at| order.is_again(*at))
            .map(|at| &*order.places[at].block)
            .collect();
        match again.len() > MOST_AGAIN {
            false => Ok(order),
            true => Err(ShardingError::Pipeline(format!(
                "blocks run again on results of later ones ({}): values of a pass flow from stage to stage, and not back",
                again.join(", ")
            ))),
        }
    }

    /// True for a place of a trained block that has an earlier one.
    fn is_again(&self, at: usize) -> bool {
        let place = &self.places[at];
        place.is_trained && self.places[..at].iter().any(|earlier| earlier.block == place.block)
    }

    /// Returns the place of each call of a pass; adds the places that it needs.
    fn place(&mut self, pass: &TracedPass) -> Vec<usize> {
        let mut of_values: Vec<usize> = Vec::with_capacity(pass.values.len());
        let mut of_calls: Vec<Option<usize>> = vec![None; pass.calls.len()];
        for (at, value) in pass.values.iter().enumerate() {
            let latest = |inputs: &[usize]| {
                inputs.iter().filter(|input| **input < at).map(|input| of_values[*input]).max()
            };
            of_values.push(match value.call {
                None => latest(&value.inputs).unwrap_or(0),
                Some(call) => match of_calls[call] {
                    Some(place) => place,
                    None => {
                        let inside = pass.values[at..].iter().take_while(|value| value.call == Some(call));
                        let after = inside.filter_map(|value| latest(&value.inputs)).max().unwrap_or(0);
                        let place = self.place_of(&pass.calls[call].block, after);
                        of_calls[call] = Some(place);
                        place
                    }
                },
            });
        }
        // A call that makes no value that depends on parameters can be anywhere.
        let calls = pass.calls.iter().zip(of_calls);
        calls.map(|(call, place)| place.unwrap_or_else(|| self.place_of(&call.block, 0))).collect()
    }

    /// Returns the first place of a block that is not before another one.
    fn place_of(&mut self, block: &Arc<str>, after: usize) -> usize {
        let known =
            self.places.iter().enumerate().position(|(at, place)| at >= after && place.block == *block);
        known.unwrap_or_else(|| {
            self.places.push(PlacedBlock { block: block.clone(), operations: 0, is_trained: false });
            self.places.len() - 1
        })
    }

    /// Returns the first places of chunks that begin with these blocks; the first chunk begins with the first block.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if there is no such block, or the blocks are not in order.
    pub fn beginning_with(&self, blocks: &[String]) -> Result<Vec<usize>> {
        let place = |name: &String| {
            self.places.iter().position(|place| *place.block == **name).ok_or_else(|| {
                let known: Vec<&str> = self.places.iter().map(|place| &*place.block).collect();
                ShardingError::Pipeline(format!("there is no block `{name}`; there is: {}", known.join(", ")))
            })
        };
        let first: Vec<usize> = [Ok(0)].into_iter().chain(blocks.iter().map(place)).collect::<Result<_>>()?;
        match first.windows(2).all(|pair| pair[0] < pair[1]) {
            true => Ok(first),
            false => Err(ShardingError::Pipeline(format!(
                "stages begin with {}, which is not the order of the blocks, or leaves a stage without any",
                blocks.join(", ")
            ))),
        }
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The names of the blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| &*place.block)
    }

    /// The costs by operations of products alone.
    pub fn operations(&self) -> CutCosts {
        CutCosts { blocks: self.places.iter().map(|place| place.operations as f64).collect(), byte: 0.0 }
    }

    /// Returns the first places of `chunks` chunks of which the dearest costs as little as it can, with the values that it sends and
    /// receives. Of equally good ones those are chosen whose chunks send fewest bytes.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if there are fewer blocks than chunks.
    pub fn balanced(&self, passes: &[&TracedPass], costs: &CutCosts, chunks: usize) -> Result<Vec<usize>> {
        let places = self.places.len();
        if places < chunks {
            return Err(ShardingError::Pipeline(format!(
                "the model has {places} blocks, which cannot make {chunks} stages: choose fewer"
            )));
        }
        let mut sums = vec![0.0];
        for cost in &costs.blocks {
            sums.push(sums[sums.len() - 1] + cost);
        }
        let crossing =
            (0..=places).map(|first| self.crossing_bytes(passes, first)).collect::<Result<Vec<_>>>()?;
        let cost_of = |first: usize, end: usize| {
            sums[end] - sums[first] + costs.byte * (crossing[first] + crossing[end]) as f64
        };
        // By number of chunks and of places.
        let mut best: Vec<Vec<Option<Cut>>> = vec![vec![None; places + 1]; chunks + 1];
        best[0][0] = Some(Cut { dearest: 0.0, sent: 0, first: 0 });
        for chunk in 1..=chunks {
            for end in chunk..=places {
                let ways = (chunk - 1..end).filter_map(|first| {
                    let before = best[chunk - 1][first]?;
                    let dearest = before.dearest.max(cost_of(first, end));
                    Some(Cut { dearest, sent: before.sent + crossing[first], first })
                });
                best[chunk][end] = ways.min_by(Cut::compare);
            }
        }
        let (mut first, mut end) = (Vec::with_capacity(chunks), places);
        for chunk in (1..=chunks).rev() {
            end = best[chunk][end].map_or(0, |cut| cut.first);
            first.push(end);
        }
        first.reverse();
        Ok(first)
    }

    /// The bytes that go from the blocks before a place to those after it, in all passes.
    fn crossing_bytes(&self, passes: &[&TracedPass], first: usize) -> Result<u64> {
        if first == 0 || first == self.places.len() {
            return Ok(0);
        }
        let mut sum = 0;
        for (at, pass) in passes.iter().enumerate() {
            sum += self.divide(at, pass, &[0, first])?.bytes;
        }
        Ok(sum)
    }

    /// Divides pass `at`, at the place of each chunk's first block.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if a parameter lies outside of blocks.
    pub fn divide(&self, at: usize, pass: &TracedPass, first: &[usize]) -> Result<DividedPass> {
        let chunk = |place: &usize| first.partition_point(|first| first <= place) - 1;
        let calls: Vec<usize> = self.calls[at].iter().map(chunk).collect();
        DividedPass::new(pass, &calls, first.len())
    }
}
