//! The interface of engines. All calls between [`Lifetime::begin`] and [`Lifetime::end`] belong to one operation.

use std::sync::Arc;

#[cfg(feature = "nccl")]
use super::backend::Backend;
use super::device::{DeviceQueue, Facts};
use super::ending::ExitActions;
use crate::algorithms::cost::CostModel;
use crate::buffer::SliceMut;
use crate::control::Control;
use crate::dtype::ReduceOp;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::operation::{Algorithm, Kind, Scope, Tag};
use crate::recorder::OperationRecord;
use crate::shared::Region;
use crate::simulated::Clock;

/// An implementation of a communicator's operations.
pub(crate) trait Engine: Description + Lifetime + Services + Reductions + Movement + Send {}

/// Properties of an engine and its ranks.
pub(crate) trait Description {
    /// Returns the name of the engine, for errors.
    fn name(&self) -> &'static str;

    /// Returns this rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world_size(&self) -> usize;

    /// Returns the bytes sent and received so far.
    fn traffic(&self) -> (u64, u64);

    /// Returns the clock of this rank.
    fn clock(&self) -> Clock {
        Clock::Wall
    }

    /// True if an operation of all ranks can use this algorithm here. By default the library behind the engine chooses.
    fn offers(&self, _: Kind, algorithm: Algorithm) -> bool {
        algorithm == Algorithm::Auto
    }

    /// Returns the host of each rank, numbered in the order of appearance.
    fn hosts(&self) -> Vec<usize>;

    /// Returns the communicator's number and, after `begin`, the operation's number and its tag with the chosen algorithm.
    fn under_way(&self) -> (u32, u64, Tag);

    /// Returns the last operations of this rank, the oldest first.
    fn recent(&self) -> Vec<OperationRecord>;
}

/// Begin and end of operations and of communicators.
pub(crate) trait Lifetime: Description + Movement {
    /// Begins an operation. Returns an error if the world is broken or the operation is not available.
    fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()>;

    /// Ends an operation. If it failed on this rank alone, the others are told, as they would wait.
    fn end(&mut self, error: Option<&CommError>);

    /// Sets whether the next operations run on the communication thread while their caller computes. The time in which this rank
    /// polls for others then belongs to the caller.
    fn in_background(&mut self, _yes: bool) {}

    /// Waits until every rank has begun the operation, and checks that the facts of all are consistent.
    fn agree(&mut self, facts: &Facts) -> Result<()> {
        let all = self.all_gatherv(&facts.message())?;
        facts.check(&all, self.rank()).map_err(|(rank, ours, theirs)| CommError::Mismatch {
            rank,
            ours,
            theirs,
        })
    }

    /// Labels the current operation for [`Description::recent`].
    fn label(&self, _label: &Arc<str>) {}

    /// Makes memory of `bytes` bytes for each rank that all ranks map; `None` if some rank cannot. Every rank calls this at the
    /// same place.
    fn alloc(&mut self, _bytes: usize) -> Result<Option<Region>> {
        Ok(None)
    }

    /// Returns the costs of links, and measures them at the first call. Every rank calls this at the same place.
    fn costs(&mut self) -> Result<CostModel>;

    /// Makes an engine for the one of `groups` that this rank is in. `number` counts the splits of this engine. Every rank calls
    /// this at the same place with the same groups.
    fn split(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Box<dyn Engine>>;

    /// Returns the actions by which a communicator of some of a world's ranks aborts and leaves.
    fn ending(&self) -> ExitActions;
}

/// Services next to operations.
pub(crate) trait Services {
    /// Returns the queue of operations on GPU buffers, if there is one.
    fn device(&self) -> Option<Arc<dyn DeviceQueue>> {
        None
    }

    /// Returns the mailbox of this engine's ranks, or the name of the library that has none.
    fn mailbox(&self) -> Result<Mailbox, &'static str>;

    /// Returns the control plane of this engine's world, or the name of the library that has none.
    fn control(&self) -> Result<Control, &'static str>;

    /// Returns the failure flag of the world; `None` if the library behind this engine handles failures.
    fn failure(&self) -> Option<Arc<Failure>> {
        None
    }

    /// Returns this crate's own engine, if this one is it or is built on it. Ranks use it to find each other.
    #[cfg(feature = "nccl")]
    fn backend(&mut self) -> Option<&mut Backend> {
        None
    }
}

/// Operations that reduce values.
pub(crate) trait Reductions {
    /// Replaces every rank's buffer by the reduction of all.
    fn all_reduce(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()>;

    /// Runs the in-place operation that was begun on buffers in memory that all ranks map.
    fn in_place(&mut self, region: &Region, op: ReduceOp) -> Result<()>;

    /// Replaces chunk `rank` of the buffer by the reduction of all; the rest is unspecified.
    fn reduce_scatter(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()>;

    /// Writes the reduction of chunk `rank` to `part`, which has its length. Returns false without doing anything if that is no
    /// faster than in place and a copy.
    fn reduce_scatter_into(
        &mut self,
        _values: SliceMut<'_>,
        _part: SliceMut<'_>,
        _: ReduceOp,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Replaces the root's buffer by the reduction of all; the others keep theirs.
    fn reduce(&mut self, values: SliceMut<'_>, op: ReduceOp, root: usize) -> Result<()>;
}

/// Operations that move values.
pub(crate) trait Movement {
    /// Copies chunk `rank` of every rank's buffer to all others.
    fn all_gather(&mut self, values: SliceMut<'_>) -> Result<()>;

    /// Copies every rank's `part` to the chunk of its number in all buffers. Returns false without doing anything if that is no
    /// faster than a copy and in place.
    fn all_gather_from(&mut self, _values: SliceMut<'_>, _part: SliceMut<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Returns the buffers of all ranks, which may have different lengths.
    fn all_gatherv(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Copies the root's buffer to all others.
    fn broadcast(&mut self, values: SliceMut<'_>, root: usize) -> Result<()>;

    /// Returns all buffers at the root; elsewhere the list is empty.
    fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>>;

    /// Returns this rank's part from the root.
    fn scatter(&mut self, parts: &[&[u8]], root: usize) -> Result<Vec<u8>>;

    /// Returns this rank's parts from all ranks.
    fn all_to_all(&mut self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>>;

    /// Sends a message to one rank.
    fn send_to(&mut self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Receives a message of known length from one rank.
    fn receive_from(&mut self, from: usize, into: &mut [u8]) -> Result<()>;

    /// Sends a message to one rank while it receives one of `incoming` elements from another.
    fn send_recv(
        &mut self,
        to: usize,
        bytes: &[u8],
        from: usize,
        into: &mut [u8],
        incoming: usize,
    ) -> Result<()>;
}
