//! Reductions: how the gradients of a bucket become their sum over the ranks.
//!
//! | reduction | values on the way | used |
//! |---|---|---|
//! | [`ExactReduction`] | the gradients themselves | where nothing else is chosen |
//! | [`RoundedReduction`] | a copy in bf16 | on GPUs, for a codec that only rounds |
//! | [`CodecReduction`] | messages of a codec | with a codec |
//! | [`VirtualSum`] | sums of subtrees | with virtual ranks |
//! | [`SingleRankReduction`] | nothing | by one rank with a GPU |

mod alone;
mod coded;
mod exact;
mod rounded;
mod slots;
mod virtual_ranks;

use std::fmt::Debug;
use std::sync::Arc;

use phalanx_codecs::buffer::InPlace;
use phalanx_collectives::{CommStats, Communicator, Handle};
use phalanx_tensor::{FlatStorage, ParamBucket};

pub(super) use alone::SingleRankReduction;
pub(super) use coded::{CodecLinks, CodecReduction};
pub(super) use exact::ExactReduction;
pub(super) use rounded::RoundedReduction;
pub(super) use virtual_ranks::VirtualSum;

use crate::Result;

/// The gradients of a bucket that are complete on this rank.
#[derive(Debug)]
pub(super) struct BucketGradients<'a> {
    pub(super) index: usize,
    pub(super) param: &'a ParamBucket,
    /// The label of the bucket's operations in the flight recorder.
    pub(super) label: &'a Arc<str>,
    /// The gradients of the whole bucket.
    pub(super) full: FlatStorage,
    /// Memory for this rank's shard of the sum, where it has some of its own. Otherwise the sum goes to `full`.
    pub(super) shard: Option<FlatStorage>,
}

impl BucketGradients<'_> {
    /// Returns the memory that the sum goes to.
    fn sum(&self) -> &FlatStorage {
        self.shard.as_ref().unwrap_or(&self.full)
    }

    /// Consumes this and returns the memory that the sum goes to.
    pub(super) fn into_sum(self) -> FlatStorage {
        self.shard.unwrap_or(self.full)
    }
}

/// A way to sum the gradients of buckets over the ranks. All ranks start buckets in the same order.
pub(super) trait BucketReduction: Debug + Send + Sync {
    /// Starts the sum of a bucket's gradients over the ranks that share what is sharded, or over all ranks.
    ///
    /// # Errors
    /// Errors of the device and of communication.
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>>;

    /// Starts the sum of this rank's shard between groups of ranks; `None` if [`BucketReduction::start`] has summed over all groups.
    ///
    /// # Errors
    /// Errors of the device and of communication.
    fn start_between(
        &self,
        _: &ParamBucket,
        _sum: &FlatStorage,
        _replicas: &Communicator,
    ) -> Result<Option<Box<dyn RunningReduction>>> {
        Ok(None)
    }

    /// The cost of communication on communicators of its own.
    fn stats(&self) -> CommStats {
        CommStats::default()
    }
}

/// The reduction of a strategy, with handles of the two kinds that have functions of their own.
#[derive(Debug)]
pub(super) struct Reducer {
    /// The reduction.
    pub(super) by: Arc<dyn BucketReduction>,
    /// A handle of the reduction by a codec, if it is one.
    pub(super) coded: Option<Arc<CodecReduction>>,
    /// A handle of the reduction over virtual ranks, if it is one.
    pub(super) virtual_sum: Option<Arc<VirtualSum>>,
}

/// A reduction of a bucket that has started.
pub(super) trait RunningReduction: Debug + Send {
    /// True once [`RunningReduction::finish`] does not wait.
    fn is_done(&self) -> bool;

    /// Returns the bytes of messages under way, without the gradients themselves.
    fn wire_bytes(&self) -> u64 {
        0
    }

    /// Waits until the sum is in its place.
    ///
    /// # Errors
    /// Errors of communication.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A running operation of a communicator.
#[derive(Debug)]
struct RunningOperation<B: 'static> {
    handle: Handle<B>,
    /// The destination of the converted values, if they are rounded.
    converted: Option<FlatStorage>,
    wire_bytes: u64,
}

/// The buffers of a finished operation, one of which has the result.
trait OperationResult: Debug + Send {
    fn result(&self) -> &FlatStorage;
}

impl OperationResult for InPlace {
    fn result(&self) -> &FlatStorage {
        self.flat()
    }
}

impl OperationResult for (InPlace, InPlace) {
    fn result(&self) -> &FlatStorage {
        self.1.flat()
    }
}

impl<B: OperationResult> RunningReduction for RunningOperation<B> {
    fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let arrived = self.handle.wait()?;
        match self.converted {
            Some(sum) => Ok(sum.copy_from(arrived.result())?),
            None => Ok(()),
        }
    }
}
