//! The owner of state that no other rank has, such as the error feedback of a codec.

use phalanx_tensor::TensorRank;

use super::StageRank;

/// The rank that has a state.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct StateOwner {
    /// Its place among the ranks with samples of their own.
    pub(in crate::engine) rank: usize,
    /// The number of those ranks.
    pub(in crate::engine) ranks: usize,
    /// Its place among the ranks that share layers.
    pub(in crate::engine) tensor: TensorRank,
    /// Its place along the pipeline.
    pub(in crate::engine) stage: StageRank,
}

impl StateOwner {
    /// The kind of its tensors, of all ranks of the mesh in order.
    pub(in crate::engine) fn kind(self, prefix: &str) -> String {
        let of_stage = self.rank * self.tensor.ranks + self.tensor.rank;
        let own = self.stage.rank * self.ranks * self.tensor.ranks + of_stage;
        format!("{prefix}{own:05}{}", self.mesh())
    }

    /// The number of ranks of the mesh.
    fn all(self) -> usize {
        self.ranks * self.tensor.ranks * self.stage.ranks
    }

    /// True if a kind is of a rank of a mesh like this rank's.
    pub(in crate::engine) fn is_of_mesh(self, kind: &str) -> bool {
        kind.ends_with(&self.mesh())
    }

    /// The end of the kinds of a mesh.
    fn mesh(self) -> String {
        let axis = |name: &str, ranks: usize| match ranks {
            1 => String::new(),
            ranks => format!("-{name}-{ranks:05}"),
        };
        let [tensor, stage] = [axis("tensor", self.tensor.ranks), axis("stage", self.stage.ranks)];
        format!("-of-{:05}{tensor}{stage}", self.all())
    }
}

impl std::fmt::Display for StateOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.all())?;
        match (self.tensor.ranks, self.stage.ranks) {
            (1, 1) => Ok(()),
            (tensor, 1) => write!(f, " of which {tensor} share layers each"),
            (1, stages) => write!(f, " in {stages} stages"),
            (tensor, stages) => write!(f, " in {stages} stages, of which {tensor} share layers each"),
        }
    }
}
