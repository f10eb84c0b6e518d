//! The owner of state that no other rank has, such as the error feedback of a codec.

use phalanx_tensor::TensorRank;

/// The rank that has a state.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct StateOwner {
    /// Its place among the ranks with samples of their own.
    pub(in crate::engine) rank: usize,
    /// The number of those ranks.
    pub(in crate::engine) ranks: usize,
    /// Its place among the ranks that share layers.
    pub(in crate::engine) tensor: TensorRank,
}

impl StateOwner {
    /// The kind of its tensors.
    pub(in crate::engine) fn kind(self, prefix: &str) -> String {
        let Self { rank, ranks, tensor } = self;
        let own = format!("{prefix}{rank:05}-of-{ranks:05}");
        if tensor.ranks == 1 {
            return own;
        }
        format!("{own}-tensor-{:05}-of-{:05}", tensor.rank, tensor.ranks)
    }

    /// True if a kind is of a rank of a mesh like this rank's.
    pub(in crate::engine) fn is_of_mesh(self, kind: &str, prefix: &str) -> bool {
        let all = (0..self.ranks).flat_map(|rank| (0..self.tensor.ranks).map(move |tensor| (rank, tensor)));
        all.map(|(rank, tensor)| Self { rank, tensor: TensorRank { rank: tensor, ..self.tensor }, ..self })
            .any(|owner| owner.kind(prefix) == kind)
    }
}

impl std::fmt::Display for StateOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.tensor.ranks {
            1 => write!(f, "{}", self.ranks),
            tensor => write!(f, "{} of which {tensor} share layers each", self.ranks * tensor),
        }
    }
}
