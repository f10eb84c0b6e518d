//! What runs a communicator's operations.
//!
//! [`Backend`] is this crate's own: messages and shared memory. Engines of other libraries stand behind the same
//! [`Engine`], so that a communicator does not know which it has.

#[cfg(not(target_os = "linux"))]
mod absent;
mod backend;
mod device;
#[cfg(target_os = "linux")]
mod direct;
mod ending;
#[cfg(target_os = "linux")]
mod host_memory;
mod hosts;
pub(crate) mod measure;
mod operations;
mod split;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{HostMemory, agree, of_threads};
pub(crate) use backend::{Backend, Shared};
pub(crate) use device::{DeviceOperation, DeviceQueue, Facts, Part};
pub(crate) use ending::Ending;
#[cfg(target_os = "linux")]
pub(crate) use host_memory::{HostMemory, agree, of_threads};
#[cfg(feature = "mpi")]
pub(crate) use split::part_id;
pub(crate) use split::{Connector, Members};

use std::sync::Arc;

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

/// What a communicator asks of whatever moves its bytes. All methods between `begin` and `end` are of one operation.
pub(crate) trait Engine: Send {
    /// What moves the bytes, in errors.
    fn name(&self) -> &'static str;

    /// This rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Bytes sent and received so far.
    fn traffic(&self) -> (u64, u64);

    /// What time it is for this rank.
    fn clock(&self) -> Clock {
        Clock::Wall
    }

    /// Says whether the next operations run on the communication thread, while their caller computes: then the time in which
    /// this rank looks for others is the caller's.
    fn in_background(&mut self, _yes: bool) {}

    /// Whether an operation of all ranks can go this way here.
    fn offers(&self, kind: Kind, algorithm: Algorithm) -> bool;

    /// The communicator's number and, after `begin`, the operation's number in it and its tag with the algorithm that is taken.
    fn under_way(&self) -> (u32, u64, Tag);

    /// Begins an operation; an error if the world is broken or the operation is not to be had.
    fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()>;

    /// Ends an operation. One that failed on this rank alone leaves the others waiting, so they are told.
    fn end(&mut self, error: Option<&CommError>);

    /// What operations on buffers in the memory of a GPU are issued to, if there is such a thing here.
    fn device(&self) -> Option<Arc<dyn DeviceQueue>> {
        None
    }

    /// Waits until every rank has begun the operation, and checks that what all say of it goes together.
    fn agree(&mut self, facts: &Facts) -> Result<()> {
        let all = self.all_gatherv(&facts.message())?;
        facts.check(&all, self.rank()).map_err(|(rank, ours, theirs)| CommError::Mismatch {
            rank,
            ours,
            theirs,
        })
    }

    /// Every rank's buffer becomes the reduction of all.
    fn all_reduce(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()>;

    /// The in-place operation that was begun, on buffers in memory that all ranks map.
    fn in_place(&mut self, region: &Region, op: ReduceOp) -> Result<()>;

    /// Chunk `rank` of the buffer becomes the reduction of all; the rest is unspecified.
    fn reduce_scatter(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()>;

    /// Chunk `rank` of every rank's buffer reaches all others.
    fn all_gather(&mut self, values: SliceMut<'_>) -> Result<()>;

    /// The reduction of chunk `rank` goes to `part`, which is as long. False, with nothing done, if that would be no
    /// faster than in place and a copy.
    fn reduce_scatter_into(
        &mut self,
        _values: SliceMut<'_>,
        _part: SliceMut<'_>,
        _: ReduceOp,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Every rank's `part` reaches the chunk of its number in all buffers. False, with nothing done, if that would be no
    /// faster than a copy and in place.
    fn all_gather_from(&mut self, _values: SliceMut<'_>, _part: SliceMut<'_>) -> Result<bool> {
        Ok(false)
    }

    /// The buffers of all ranks, whatever their lengths.
    fn all_gatherv(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The root's buffer reaches all others.
    fn broadcast(&mut self, values: SliceMut<'_>, root: usize) -> Result<()>;

    /// The root's buffer becomes the reduction of all; the others keep theirs.
    fn reduce(&mut self, values: SliceMut<'_>, op: ReduceOp, root: usize) -> Result<()>;

    /// All buffers arrive at the root; elsewhere the list is empty.
    fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>>;

    /// Each rank receives its part from the root.
    fn scatter(&mut self, parts: &[&[u8]], root: usize) -> Result<Vec<u8>>;

    /// Each rank receives its part from every rank.
    fn all_to_all(&mut self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>>;

    /// Sends a message to one rank.
    fn send_to(&mut self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Receives a message of known length from one rank.
    fn receive_from(&mut self, from: usize, into: &mut [u8]) -> Result<()>;

    /// Sends a message to one rank while one comes from another, whose elements are `incoming` many.
    fn send_recv(
        &mut self,
        to: usize,
        bytes: &[u8],
        from: usize,
        into: &mut [u8],
        incoming: usize,
    ) -> Result<()>;

    /// The measured cost of links, measured now if it was not yet. Every rank calls this at the same place.
    fn costs(&mut self) -> Result<CostModel>;

    /// The host of each rank, numbered in the order of appearance.
    fn hosts(&self) -> Vec<usize>;

    /// Memory for `bytes` bytes of each rank that all ranks map; `None` if it cannot be had on every rank. Every rank calls
    /// this at the same place.
    fn alloc(&mut self, bytes: usize) -> Result<Option<Region>>;

    /// An engine for the one of `groups` that this rank is in; `number` counts the splits of this engine. Every rank calls
    /// this at the same place with the same groups.
    fn split(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Box<dyn Engine>>;

    /// How a communicator over this engine gives up and leaves, if it is one of some of a world's ranks.
    fn ending(&self) -> Ending;

    /// Messages of this engine's ranks that belong to no operation; the library's name, if that has none.
    fn mailbox(&self) -> Result<Mailbox, &'static str>;

    /// The control plane of this engine's world; the library's name, if that has none.
    fn control(&self) -> Result<Control, &'static str>;

    /// Where it is noted that the world broke; nothing if the library behind this engine decides about that.
    fn failure(&self) -> Option<Arc<Failure>> {
        None
    }

    /// Says what the operation that was begun is about, for [`Engine::recent`].
    fn label(&self, _label: &Arc<str>) {}

    /// What this rank did last, the oldest first.
    fn recent(&self) -> Vec<OperationRecord>;

    /// This crate's own engine, if this one is it or stands on it: ranks find each other through it.
    #[cfg(feature = "nccl")]
    fn backend(&mut self) -> Option<&mut Backend> {
        None
    }
}

/// The first rank that says something else, and what.
pub(crate) fn same_facts(all: &[Vec<u8>], own: &str) -> Result<(), (usize, String)> {
    match all.iter().position(|other| other != own.as_bytes()) {
        None => Ok(()),
        Some(rank) => Err((rank, String::from_utf8_lossy(&all[rank]).into_owned())),
    }
}
