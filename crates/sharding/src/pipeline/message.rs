//! Messages between chunks, and their errors.

use phalanx_collectives::CommError;

use crate::ShardingError;

/// A message from one chunk to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageTag {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) value: usize,
    pub(super) micro: usize,
}

impl std::fmt::Display for MessageTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { from, to, value, micro } = self;
        write!(f, "value {value} of micro-batch {micro} from stage {from} to stage {to}")
    }
}

impl MessageTag {
    /// The error of a message that cannot come or go.
    pub(super) fn lost(self, what: &str, error: &CommError) -> ShardingError {
        ShardingError::Pipeline(format!("{what} {self}: {error}"))
    }
}
