//! Names of algorithms.

use std::str::FromStr;

use super::kind::Kind;
use crate::error::{CommError, Result};

/// The algorithm of an operation.
///
/// `docs/collectives.md` has a diagram and the cost of each. All ranks must use the same one; a disagreement is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// The fastest by the cost model for the size, the ranks and their links.
    #[default]
    Auto,
    /// Through memory that all ranks map (Linux, ranks of one host).
    Direct,
    /// A ring in which each rank sends a part to its neighbour in each step: the fewest bytes (Patarasuk & Yuan 2009).
    Ring,
    /// Up a binomial tree and down again: the fewest steps.
    Tree,
    /// Recursive halving, then doubling: few steps and few bytes (Thakur, Rabenseifner & Gropp 2005).
    HalvingDoubling,
    /// Inside each host, then between hosts, then inside again.
    Hierarchical,
    /// All values to rank 0 and back.
    SingleReducer,
    /// Every rank serves a part that all push to it and pull from it, as from a sharded parameter server.
    PushPull,
    /// Ranks in a grid: rows first, then columns, then rows.
    Grid,
}

impl Algorithm {
    /// All algorithms. The position is the code on the wire.
    pub const ALL: [Self; 9] = [
        Self::Auto,
        Self::Direct,
        Self::Ring,
        Self::Tree,
        Self::HalvingDoubling,
        Self::Hierarchical,
        Self::SingleReducer,
        Self::PushPull,
        Self::Grid,
    ];

    /// Returns the name in command lines and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::HalvingDoubling => "halving-doubling",
            Self::Hierarchical => "hierarchical",
            Self::SingleReducer => "single-reducer",
            Self::PushPull => "push-pull",
            Self::Grid => "2d",
        }
    }

    /// True if this algorithm exists for an operation, in a world that allows it.
    pub(crate) fn offers(self, kind: Kind) -> bool {
        match self {
            Self::Auto | Self::Direct => true,
            Self::Ring => matches!(
                kind,
                Kind::AllReduce
                    | Kind::ReduceScatter
                    | Kind::AllGather
                    | Kind::AllGatherV
                    | Kind::Broadcast
                    | Kind::Reduce
                    | Kind::AllToAll
                    | Kind::AllToAllV
                    | Kind::Barrier
            ),
            Self::Tree => matches!(kind, Kind::AllReduce | Kind::Broadcast | Kind::Reduce),
            Self::HalvingDoubling => matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather),
            Self::Hierarchical => matches!(kind, Kind::AllReduce | Kind::Broadcast),
            Self::SingleReducer => {
                matches!(
                    kind,
                    Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter
                )
            }
            Self::PushPull => matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather),
            Self::Grid => matches!(kind, Kind::AllReduce),
        }
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = CommError;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|algorithm| algorithm.name()).collect();
            let problem = format!("unknown algorithm `{text}`; use one of {}", known.join(", "));
            CommError::Argument { operation: "algorithm", problem }
        })
    }
}
