//! What each rank holds between steps, so that it can be counted, saved and read back part by part.

use phalanx_tensor::Unit;

use super::DataParallel;
use crate::strategy::Held;

/// This rank's part in what is saved: see [`DataParallel::share`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The position among the ranks that share what is sharded.
    pub shard: usize,
    /// How many they are.
    pub shards: usize,
    /// Which of the groups that hold the same; 0 if there are none.
    pub replica: usize,
    /// Parameters between uses. Where they are sharded, [`DataParallel::units`] are this rank's parts.
    pub parameters: Held,
    /// Optimizer state and averages, which go with [`DataParallel::units`].
    pub optimizer: Held,
}

impl Share {
    /// The only rank: it holds everything.
    pub const ALONE: Self =
        Self { shard: 0, shards: 1, replica: 0, parameters: Held::Replicated, optimizer: Held::Replicated };

    /// Whether it falls to this rank to save something that is held so, once in the whole world.
    pub fn saves(&self, held: Held) -> bool {
        self.replica == 0 && (held == Held::Sharded || self.shard == 0)
    }
}

impl DataParallel {
    /// What of the state this rank holds, and which other ranks hold the rest or the same.
    pub fn share(&self) -> Share {
        let placement = self.strategy.placement;
        Share {
            shard: self.shards.rank(),
            shards: self.shards.world_size(),
            replica: self.replicas.as_ref().map_or(0, phalanx_collectives::Communicator::rank),
            parameters: placement.parameters,
            optimizer: placement.optimizer,
        }
    }

    /// The units whose values this rank keeps between steps: its parts of those that are gathered for use, and otherwise
    /// whole ones. Values that are read into them (by each entry's name and part) are the model's after
    /// [`DataParallel::broadcast_state`], without any unit having been gathered.
    pub fn resident_units(&self) -> Vec<Unit> {
        let held =
            |place: &super::Place| if place.released { place.own.clone() } else { place.whole.clone() };
        self.places.iter().map(held).collect()
    }

    /// Bytes of parameters and of gradients that this rank holds now.
    pub fn bytes(&self) -> [u64; 2] {
        let (mut parameters, mut gradients) = (0, 0);
        for place in &self.places {
            let (whole, own) = (place.whole.bytes() as u64, place.own.bytes() as u64);
            parameters += if place.whole.values().is_some() { whole } else { 0 };
            // A part that is not released is a view of the whole.
            parameters += if place.released && place.own.values().is_some() { own } else { 0 };
            match (place.whole.has_grads(), place.own.has_grads()) {
                (true, _) => gradients += whole,
                (false, true) => gradients += own,
                (false, false) => {}
            }
        }
        [parameters, gradients]
    }
}
