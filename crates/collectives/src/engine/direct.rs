//! Operations through shared memory of a host, with errors that name ranks by their numbers in the world.

use super::HostMemory;
use super::backend::Backend;
use crate::algorithms::Hosts;
use crate::dtype::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Kind, Tag};
use crate::reduce::Reduction;
use crate::shared::{Note, Region, SlotError, SlotExchange, SlotOp};
use crate::waiting::LinkError;

impl Backend {
    /// Runs an operation on the slot exchange of this host.
    fn on_slots<R>(
        &mut self,
        run: impl FnOnce(&mut SlotExchange, SlotOp<'_>) -> std::result::Result<R, SlotError>,
    ) -> Result<R> {
        let Some(HostMemory { group, mut slots }) = self.host_memory.take() else {
            return Err(self.broken(LinkError::Closed(self.rank)));
        };
        let note = Note::new(self.sequence, self.tag);
        let result = run(&mut slots, SlotOp { note, limits: &self.limits });
        let result = result.map_err(|error| match error {
            SlotError::Link(LinkError::Closed(rank)) => self.broken(LinkError::Closed(group.at(rank))),
            SlotError::Link(LinkError::Timeout(rank)) => self.broken(LinkError::Timeout(group.at(rank))),
            SlotError::Link(LinkError::Altered(rank)) => self.broken(LinkError::Altered(group.at(rank))),
            SlotError::Mismatch { rank, note } => {
                let theirs = Tag::unpacked(note.tag).map_or_else(
                    || "an operation that this version does not know".into(),
                    |tag| tag.describe(note.sequence),
                );
                self.mismatch(group.at(rank), theirs)
            }
        });
        self.host_memory = Some(HostMemory { group, slots });
        result
    }

    /// Runs an operation on the slot exchange of this host. Returns false if its ranks share no memory.
    fn if_shared(
        &mut self,
        run: impl FnOnce(&mut SlotExchange, SlotOp<'_>) -> std::result::Result<(), SlotError>,
    ) -> Result<bool> {
        let shared = self.host_memory.is_some();
        if shared {
            self.on_slots(run)?;
        }
        Ok(shared)
    }

    /// Counts bytes that this rank reads of others, and that others read of it.
    fn count(&mut self, ways: usize, bytes: usize) {
        let moved = (ways * bytes * (self.world_size - 1) / self.world_size) as u64;
        self.traffic.sent += moved;
        self.traffic.received += moved;
    }

    pub(crate) fn direct_all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<()> {
        self.count(2, size_of_val(values));
        self.on_slots(|slots, op| slots.all_reduce(values, reduction, op))
    }

    pub(crate) fn direct_reduce_scatter<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<()> {
        self.count(1, size_of_val(values));
        self.on_slots(|slots, op| slots.reduce_scatter(values, reduction, op))
    }

    pub(crate) fn direct_all_gather<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.count(1, size_of_val(values));
        self.on_slots(|slots, op| slots.all_gather(values, op))
    }

    /// True if the current operation on this buffer reads other ranks' buffers in place.
    fn exposes<T>(&self, values: &[T]) -> bool {
        self.tag.algorithm == Algorithm::Direct
            && self.host_memory.as_ref().is_some_and(|memory| memory.slots.exposes(size_of_val(values)))
    }

    /// Writes the reduction of this rank's chunk of all buffers to `part`. Returns false without doing anything if buffers are not
    /// exposed.
    pub(crate) fn cross_memory_reduce_scatter<T: Element>(
        &mut self,
        values: &mut [T],
        part: &mut [T],
        reduction: Reduction,
    ) -> Result<bool> {
        let exposes = self.exposes(values);
        if exposes {
            self.count(1, size_of_val(values));
            self.on_slots(|slots, op| slots.reduce_scatter_cross_memory(values, Some(part), reduction, op))?;
        }
        Ok(exposes)
    }

    /// Copies every rank's `part` to the chunk of its number in all buffers. Returns false without doing anything if buffers are
    /// not exposed.
    pub(crate) fn cross_memory_all_gather<T: Element>(
        &mut self,
        values: &mut [T],
        part: &mut [T],
    ) -> Result<bool> {
        let exposes = self.exposes(values);
        if exposes {
            self.count(1, size_of_val(values));
            self.on_slots(|slots, op| slots.all_gather_cross_memory(values, Some(part), op))?;
        }
        Ok(exposes)
    }

    pub(crate) fn direct_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        self.count(1, size_of_val(values));
        self.on_slots(|slots, op| slots.reduce(values, reduction, root, op))
    }

    pub(crate) fn direct_broadcast<T: Element>(&mut self, values: &mut [T], root: usize) -> Result<()> {
        self.count(1, size_of_val(values));
        self.on_slots(|slots, op| slots.broadcast(bytemuck::cast_slice_mut(values), root, op))
    }

    pub(crate) fn direct_gather(&mut self, own: &[u8], root: Option<usize>) -> Result<Vec<Vec<u8>>> {
        let all = self.on_slots(|slots, op| slots.gather(own, root, op))?;
        // All other ranks read it, or the root alone.
        let readers = if root.is_none() { self.world_size - 1 } else { usize::from(root != Some(self.rank)) };
        self.traffic.sent += (readers * own.len()) as u64;
        let others = all.iter().enumerate().filter(|(from, _)| *from != self.rank);
        self.traffic.received += others.map(|(_, bytes)| bytes.len()).sum::<usize>() as u64;
        Ok(all)
    }

    pub(crate) fn direct_scatter(&mut self, parts: &[&[u8]], root: Option<usize>) -> Result<Vec<Vec<u8>>> {
        let all = self.on_slots(|slots, op| slots.scatter(parts, root, op))?;
        self.traffic.sent += parts.iter().map(|part| part.len()).sum::<usize>() as u64;
        self.traffic.received += all.iter().map(Vec::len).sum::<usize>() as u64;
        Ok(all)
    }

    /// Runs the current operation on buffers in memory that all ranks map, without a copy.
    pub(crate) fn direct_in_place<T: Element>(
        &mut self,
        region: &Region,
        reduction: Reduction,
    ) -> Result<()> {
        let kind = self.tag.kind;
        self.count(if kind == Kind::AllReduceInPlace { 2 } else { 1 }, region.bytes());
        self.on_slots(|slots, op| match kind {
            Kind::AllGatherInPlace => slots.all_gather_in::<T>(region, op),
            Kind::ReduceScatterInPlace => slots.reduce_in::<T>(region, reduction, false, op),
            _ => slots.reduce_in::<T>(region, reduction, true, op),
        })
    }
}

impl Hosts for Backend {
    fn rank(&self) -> usize {
        self.rank
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn reduce_scatter_on_host<T: Element>(&mut self, values: &mut [T], reduction: Reduction) -> Result<bool> {
        self.if_shared(|slots, op| slots.reduce_scatter(values, reduction, op))
    }

    fn all_gather_on_host<T: Element>(&mut self, values: &mut [T]) -> Result<bool> {
        self.if_shared(|slots, op| slots.all_gather(values, op))
    }

    fn reduce_on_host<T: Element>(&mut self, values: &mut [T], reduction: Reduction) -> Result<bool> {
        self.if_shared(|slots, op| slots.reduce(values, reduction, 0, op))
    }

    fn broadcast_on_host<T: Element>(&mut self, values: &mut [T]) -> Result<bool> {
        self.if_shared(|slots, op| slots.broadcast(bytemuck::cast_slice_mut(values), 0, op))
    }
}
