//! Observation of a strategy: name, role, bytes, statistics.

use phalanx_collectives::CommStats;

use super::SyncStats;
use crate::Partition;

/// When rank 0 has the losses of a step from all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepReports {
    /// At the end of the step: all ranks come to it at about the same time, so rank 0 waits for them.
    AtOnce,
    /// Steps later: waiting would hold this rank up for ranks that the strategy lets fall behind.
    Delayed,
}

/// The relation of this rank's parameters to the trained model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalModel {
    /// They are the model's.
    Current,
    /// They are a copy of the servers' values, which may be newer.
    Copy,
    /// They and the optimizer state are this rank's own, so each rank saves its own. The model is the mean over the ranks.
    Own,
}

/// Observes a strategy.
pub trait Observed {
    /// The strategy's name.
    fn name(&self) -> &'static str;

    /// The part of the state that this rank holds between steps.
    fn role(&self) -> ShardRole;

    /// When the losses of all ranks are known.
    fn step_reports(&self) -> StepReports {
        StepReports::AtOnce
    }

    /// The relation of this rank's parameters to the trained model.
    fn local_model(&self) -> LocalModel {
        LocalModel::Current
    }

    /// The bytes that this rank holds now.
    fn bytes(&self) -> StateBytes;

    /// The most bytes of whole parameters that were in memory at once, besides this rank's shards. 0 where parameters are not sharded.
    fn peak_gathered_bytes(&self) -> u64 {
        0
    }

    /// The cost of communication so far.
    fn stats(&self) -> CommStats;

    /// Staleness of changes, and time that this rank has waited for others.
    fn sync_stats(&self) -> SyncStats {
        SyncStats::default()
    }

    /// New decisions about where the codec pays ([`crate::CodecWhen::Auto`]); each is returned once.
    fn codec_verdicts(&self) -> Vec<crate::CodecVerdict> {
        Vec::new()
    }
}

/// Bytes of state that a rank holds, every element counted as often as it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Parameters, with what is gathered at the moment.
    pub parameters: u64,
    /// Gradients, with those that are not reduced yet.
    pub gradients: u64,
    /// The codec's state between steps.
    pub codec: u64,
    /// Encoded gradients on their way.
    pub wire: u64,
    /// Further state of the strategy: parameters of the last round, outer momentum, a server's copies.
    pub synchrony: u64,
}

/// A rank's role in what is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRole {
    /// The position among the ranks that share what is sharded.
    pub shard: usize,
    /// The number of those ranks.
    pub shards: usize,
    /// Which of the groups that hold the same; 0 if there are none.
    pub replica: usize,
    /// Parameters between steps.
    pub parameters: Partition,
    /// Optimizer state and averages, which go with the elements that are owned.
    pub optimizer: Partition,
}

impl ShardRole {
    /// True if this rank saves state of this partition, so that it is saved once in the world.
    pub fn saves(&self, layout: Partition) -> bool {
        self.replica == 0 && (layout == Partition::Sharded || self.shard == 0)
    }
}
