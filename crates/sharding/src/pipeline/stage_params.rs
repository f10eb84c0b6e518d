//! The parameters and buffers of each stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use candle_core::Shape;
use phalanx_tensor::{ParamLayout, ParamPlace, PlacedName, StagePlace};

use super::division::DividedPass;

/// Which rank along a pipeline holds which parameters and buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageParams {
    /// By parameter, the ranks whose passes read it.
    params: BTreeMap<String, BTreeSet<usize>>,
    /// By block, the rank of its first call, which holds its buffers.
    blocks: BTreeMap<String, usize>,
    /// The number of ranks.
    ranks: usize,
}

impl StageParams {
    /// Adds what the chunks of a pass read; `places` has the rank of each chunk.
    pub fn add(&mut self, pass: &DividedPass, places: &[usize]) {
        self.ranks = places.iter().fold(self.ranks, |ranks, place| ranks.max(place + 1));
        for (params, place) in pass.params.iter().zip(places) {
            for param in params {
                self.params.entry(param.clone()).or_default().insert(*place);
            }
        }
        for call in pass.plans.first().map(|plan| plan.calls.as_slice()).unwrap_or_default() {
            self.blocks.entry(call.block.to_string()).or_insert(places[call.chunk]);
        }
    }

    /// The sets of several ranks that hold the same parameters.
    pub fn shared(&self) -> BTreeSet<Arc<[usize]>> {
        let sets = self.params.values().filter(|ranks| ranks.len() > 1);
        sets.map(|ranks| ranks.iter().copied().collect()).collect()
    }

    /// The rank that computes a block in passes that were not divided: that of its first call, or the first one that holds one of its
    /// parameters. A block that no pass calls and that has no parameters is computed by the first rank.
    pub(super) fn rank_of_block(&self, block: &str) -> usize {
        let holds = |param: &str| param.strip_prefix(block).is_some_and(|rest| rest.starts_with('.'));
        let of_params = || {
            let mut near =
                self.params.range(block.to_owned()..).take_while(|(param, _)| param.starts_with(block));
            near.find(|(param, _)| holds(param)).and_then(|(_, ranks)| ranks.first().copied())
        };
        self.blocks.get(block).copied().or_else(of_params).unwrap_or_default()
    }

    /// Returns the layout of the parameters of a rank, of which `within` may be a layout of portions.
    pub fn layout(
        self: &Arc<Self>,
        rank: usize,
        within: Option<Arc<dyn ParamLayout>>,
    ) -> Arc<dyn ParamLayout> {
        Arc::new(StageLayout { params: self.clone(), rank, within })
    }

    /// The ranks that hold a parameter or a buffer. What no pass reads is held by the first one. Buffers outside of blocks are read
    /// between them, by code that all ranks run: all hold them, and the first one saves them.
    fn holders(&self, of: &PlacedName<'_>) -> BTreeSet<usize> {
        let first = || BTreeSet::from([0]);
        match of.is_buffer {
            true if of.block.is_empty() => (0..self.ranks).collect(),
            true => self.blocks.get(of.block).map_or_else(first, |rank| BTreeSet::from([*rank])),
            false => self.params.get(of.name).cloned().unwrap_or_else(first),
        }
    }
}

/// The layout of the parameters of a rank along a pipeline.
#[derive(Debug)]
struct StageLayout {
    params: Arc<StageParams>,
    rank: usize,
    within: Option<Arc<dyn ParamLayout>>,
}

impl ParamLayout for StageLayout {
    fn place(&self, of: &PlacedName<'_>, whole: &Shape) -> phalanx_tensor::Result<ParamPlace> {
        let within = self.within.as_ref();
        let place = within.map_or(Ok(ParamPlace::default()), |within| within.place(of, whole))?;
        let holders = self.params.holders(of);
        let stages = match (holders.contains(&self.rank), holders.len()) {
            (false, _) => StagePlace::Elsewhere,
            (true, 1) => StagePlace::Here,
            (true, _) => StagePlace::Shared(holders.iter().copied().collect()),
        };
        let counts = place.counts && holders.first() == Some(&self.rank);
        Ok(ParamPlace { counts, stages, ..place })
    }

    fn ranks(&self) -> usize {
        self.within.as_ref().map_or(1, |within| within.ranks())
    }
}
