//! Placements: the meaning of a value's numbers on ranks that compute parts of the same layers.
//!
//! Ranks along a tensor axis have the same samples, and each computes with its portion of the layers' parameters (Shoeybi et al.
//! 2019). A sum that is not complete reads like any other number, and so does the gradient of a rank that has only a part of it. So
//! a value says what it is, and every op says which values it can take.

/// The numbers of a value on the ranks of a tensor axis.
///
/// | placement | numbers | gradient of a rank |
/// |---|---|---|
/// | `Same` | equal on all ranks | the whole one, equal on all ranks |
/// | `Copied` | equal on all ranks | a part of the sum over the ranks |
/// | `Shard` | each rank has a part along a dimension | that of its part |
/// | `Joint` | each rank has a part of each of several things that lie one after the other along a dimension | that of its parts |
/// | `Partial` | each rank has a part of a sum | that of the sum, equal on all ranks |
///
/// Constants have none, and suit both `Same` and `Copied`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Equal numbers, with which all ranks compute the same.
    Same,
    /// Equal numbers, with which ranks compute different parts.
    Copied,
    /// A part along a dimension.
    Shard {
        /// The dimension, from 0.
        dim: usize,
    },
    /// A part of each of several things that lie one after the other along a dimension: queries, keys and values, or values and gates.
    Joint {
        /// The dimension, from 0.
        dim: usize,
        /// The number of things.
        parts: usize,
    },
    /// A part of a sum.
    Partial,
}

impl Placement {
    /// The dimension of which ranks have parts.
    pub(crate) fn cut_dim(self) -> Option<usize> {
        match self {
            Self::Shard { dim } | Self::Joint { dim, .. } => Some(dim),
            Self::Same | Self::Copied | Self::Partial => None,
        }
    }

    /// Returns a placement of parts along another dimension.
    pub(crate) fn along(self, dim: usize) -> Self {
        match self {
            Self::Shard { .. } => Self::Shard { dim },
            Self::Joint { parts, .. } => Self::Joint { dim, parts },
            whole => whole,
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("the same on all ranks"),
            Self::Copied => f.write_str("a copy for different parts"),
            Self::Shard { dim } => write!(f, "a shard of dimension {dim}"),
            Self::Joint { dim, parts } => write!(f, "a shard of each of {parts} parts of dimension {dim}"),
            Self::Partial => f.write_str("a part of a sum"),
        }
    }
}
