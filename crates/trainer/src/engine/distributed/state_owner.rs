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
    /// The kind of its tensors, of all ranks of the mesh in order.
    pub(in crate::engine) fn kind(self, prefix: &str) -> String {
        let own = self.rank * self.tensor.ranks + self.tensor.rank;
        format!("{prefix}{own:05}{}", self.mesh())
    }

    /// True if a kind is of a rank of a mesh like this rank's.
    pub(in crate::engine) fn is_of_mesh(self, kind: &str) -> bool {
        kind.ends_with(&self.mesh())
    }

    /// The end of the kinds of a mesh.
    fn mesh(self) -> String {
        let all = format!("-of-{:05}", self.ranks * self.tensor.ranks);
        match self.tensor.ranks {
            1 => all,
            tensor => format!("{all}-tensor-{tensor:05}"),
        }
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
