//! Buffers in memory that all ranks map, which are reduced in place without a copy into slots.

use super::memory::SharedMemory;
use super::operations::BLOCK;
use super::slot_exchange::{REDUCED, SlotError, SlotExchange, SlotOp};
use crate::dtype::Element;
use crate::partition::chunk;
use crate::reduce::Reduction;

/// One buffer for each rank, next to each other.
#[derive(Clone)]
pub struct Region {
    memory: SharedMemory,
    rank: usize,
    bytes: usize,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes of rank {})", self.bytes, self.rank)
    }
}

impl Region {
    /// Bytes between the buffers of neighbouring ranks: whole pages.
    fn stride(bytes: usize) -> usize {
        bytes.next_multiple_of(4096)
    }

    /// Returns the bytes of the memory for a world; `None` if they are too many to be addressed.
    pub(crate) fn size(bytes: usize, world: usize) -> Option<usize> {
        let stride = bytes.checked_next_multiple_of(4096)?.max(4096);
        stride.checked_mul(world).filter(|size| isize::try_from(*size).is_ok())
    }

    pub(crate) fn new(memory: SharedMemory, rank: usize, bytes: usize) -> Self {
        Self { memory, rank, bytes }
    }

    /// Returns the bytes of one rank's buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, rank: usize) -> usize {
        rank * Self::stride(self.bytes)
    }

    /// Returns this rank's buffer.
    pub(crate) fn slice<T: Element>(&self, len: usize) -> &[T] {
        self.memory.own(self.at(self.rank), len)
    }

    /// Returns this rank's buffer for writing.
    pub(crate) fn slice_mut<T: Element>(&mut self, len: usize) -> &mut [T] {
        let at = self.at(self.rank);
        self.memory.own_mut(at, len)
    }
}

impl SlotExchange {
    /// Waits until all ranks have ended a piece, after which none touches another's buffer.
    pub(super) fn part(&self, piece: u32, op: SlotOp<'_>) -> Result<(), SlotError> {
        self.publish(REDUCED, piece.wrapping_add(1));
        self.others().try_for_each(|other| self.wait(other, REDUCED, piece.wrapping_add(1), op))
    }

    pub(super) fn gather_around(&mut self, op: SlotOp<'_>) -> Result<u32, SlotError> {
        let piece = self.piece;
        self.piece = piece.wrapping_add(1);
        self.arrive(piece, op.note);
        self.others().try_for_each(|other| self.meet(other, piece, op))?;
        Ok(piece)
    }

    /// Replaces this rank's chunk by the reduction of all buffers, in its own buffer or in all of them.
    pub(crate) fn reduce_in<T: Element>(
        &mut self,
        region: &Region,
        reduction: Reduction,
        everywhere: bool,
        op: SlotOp<'_>,
    ) -> Result<(), SlotError> {
        let piece = self.gather_around(op)?;
        let (size, len) = (size_of::<T>(), region.bytes / size_of::<T>());
        let own = chunk(len, self.world, self.rank);
        let mut scratch = [0_u64; BLOCK / 8];
        let values = bytemuck::cast_slice_mut::<u64, T>(&mut scratch);
        for start in own.clone().step_by(values.len()) {
            let block = &mut values[..(own.end - start).min(BLOCK / size)];
            self.memory_order(region, start * size, block, reduction);
            let to = |rank: usize| region.at(rank) + start * size;
            for rank in (0..self.world).filter(|rank| everywhere || *rank == self.rank) {
                region.memory.copy_in(to(rank), bytemuck::cast_slice(block));
            }
        }
        self.part(piece, op)
    }

    /// block ← the reduction of all ranks' values at an offset into their buffers, in the order of ranks.
    fn memory_order<T: Element>(
        &self,
        region: &Region,
        offset: usize,
        block: &mut [T],
        reduction: Reduction,
    ) {
        region.memory.copy_out(region.at(0) + offset, bytemuck::cast_slice_mut(block));
        (1..self.world)
            .for_each(|rank| region.memory.reduce_from(region.at(rank) + offset, reduction.op, block));
        reduction.complete(block);
    }

    /// Copies every rank's chunk to all buffers.
    pub(crate) fn all_gather_in<T: Element>(
        &mut self,
        region: &Region,
        op: SlotOp<'_>,
    ) -> Result<(), SlotError> {
        let piece = self.gather_around(op)?;
        let (size, len) = (size_of::<T>(), region.bytes / size_of::<T>());
        for from in self.others() {
            let range = chunk(len, self.world, from);
            let bytes = range.start * size..range.end * size;
            region.memory.copy_within(
                region.at(from) + bytes.start,
                region.at(self.rank) + bytes.start,
                bytes.len(),
            );
        }
        self.part(piece, op)
    }
}
