//! How the engine goes about a strategy: sizes of messages, and how far ahead parameters are gathered.

use std::sync::Arc;

use crate::hook::CommHook;

/// What can be chosen beside the strategy. All ranks must choose the same.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ranks in a group, where the strategy has groups; 0 takes the hosts if they have as many ranks each, and otherwise
    /// as many ranks as the largest proper divisor of the world size.
    pub group: usize,
    /// Units that follow each other travel in one message, a *bucket*, until it has at least this many bytes. A message
    /// has a fixed cost; what is merged waits for each other. 0 gives every unit messages of its own.
    pub bucket_bytes: usize,
    /// Where parameters are sharded: how many buckets are gathered ahead of their use. Where gradients are sharded: so
    /// many buckets' gradients, but at least one's, may be on their way while backward goes on.
    pub prefetch: usize,
    /// Where parameters are sharded: nothing is gathered ahead if more than this many bytes would then be in memory. The
    /// bucket that is used is there whatever its size.
    pub gathered_bytes: usize,
    /// How gradients travel, if not as they are.
    pub hook: Option<Arc<dyn CommHook>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { group: 0, bucket_bytes: 1 << 20, prefetch: 1, gathered_bytes: usize::MAX, hook: None }
    }
}
