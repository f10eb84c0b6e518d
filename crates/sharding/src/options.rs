//! Options of data parallelism: algorithms, codecs, prefetch.

use std::sync::Arc;

use phalanx_collectives::{Algorithm, Communicator, ReduceOp};

use crate::{Result, ShardingError};
use phalanx_codecs::{CodecScope, CodecWhen, GradCodec, WeightRounding};

/// Options besides the strategy. All ranks must choose the same.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where parameters are sharded: the number of buckets that are gathered ahead of their use. Where gradients are
    /// sharded: the number of buckets, at least one, whose gradients may be on their way while backward runs.
    pub prefetch: usize,
    /// Where parameters are sharded: the upper limit of gathered bytes for prefetching. A bucket in use is gathered in any
    /// case.
    pub gathered_bytes: usize,
    /// The algorithm of collectives for gradients and parameters. A named algorithm is used or refused.
    pub algorithm: Algorithm,
    /// The codec of gradients, if there is one.
    pub codec: Option<Arc<dyn GradCodec>>,
    /// Between whom the codec is used.
    pub codec_scope: CodecScope,
    /// The condition for the codec: always, or where it is measured to be faster. Workers that push to servers always use
    /// it.
    pub codec_when: CodecWhen,
    /// Where parameters are sharded, or pulled from servers: they come rounded; `None` brings them as they are. The owner of a shard,
    /// or the server, updates the exact ones, and they are what is saved.
    pub weights: Option<WeightRounding>,
    /// Overlap of communication and computing.
    pub overlap: Overlap,
    /// Threads that each rank computes with, for [`Overlap::Auto`].
    pub threads: usize,
    /// The number of virtual ranks, whose gradients are summed along a tree ([`crate::VirtualRanks`]); `None` to sum the
    /// gradients of the ranks themselves.
    pub virtual_ranks: Option<usize>,
}

/// Overlap of communication and computing, by a thread of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Always, except where parameters are sharded among ranks of one host whose cores all compute, or those ranks share layers. There
    /// communication takes time of the same cores: it would not be hidden, and would hold more memory.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: gathers and reductions run in the thread that computes, when their turn has come, and nothing is gathered ahead.
    Never,
}

impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl std::str::FromStr for Overlap {
    type Err = ShardingError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|overlap| overlap.to_string() == text);
        let unknown = || ShardingError::Overlap { name: text.to_owned() };
        found.copied().ok_or_else(unknown)
    }
}

impl Overlap {
    /// All choices.
    pub const ALL: &'static [Self] = &[Self::Auto, Self::Always, Self::Never];

    /// Decides for all ranks alike, given whether each rank waits for others in the middle of a pass, as where parameters are gathered, on
    /// cores that compute. Every rank calls this at the same place.
    ///
    /// # Errors
    /// Errors of the transport.
    pub fn decide(self, comm: &Communicator, waits: bool, threads: usize) -> Result<bool> {
        let one_host = comm.hosts().windows(2).all(|pair| pair[0] == pair[1]);
        match self {
            Self::Always => Ok(true),
            Self::Never => Ok(false),
            Self::Auto if !one_host || !waits => Ok(true),
            Self::Auto => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                // Ranks may be bound to cores one by one, so all are asked.
                let mut spare = [i32::from(cores > comm.world_size() * threads)];
                comm.all_reduce(&mut spare, ReduceOp::Min)?;
                Ok(spare[0] > 0)
            }
        }
    }
}

impl Options {
    /// Refuses what is not the gradients themselves, or adds them up in an order of its own.
    pub(crate) fn sums_exactly(&self) -> Result<()> {
        let rounds = match (&self.codec, self.weights) {
            (Some(codec), _) => codec.name(),
            (None, Some(weights)) => weights.name(),
            (None, None) => return Ok(()),
        };
        let problem = "adds up in the order of ranks, or rounds; gradients of logical ranks are summed as they are, along a tree";
        Err(ShardingError::codec(rounds, problem))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefetch: 1,
            gathered_bytes: usize::MAX,
            algorithm: Algorithm::Auto,
            codec: None,
            codec_scope: CodecScope::All,
            codec_when: CodecWhen::Always,
            weights: None,
            overlap: Overlap::Auto,
            threads: 1,
            virtual_ranks: None,
        }
    }
}
