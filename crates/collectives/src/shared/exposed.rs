//! Operations on large buffers that ranks expose to each other, which are read in place with at most one copy.
//!
//! Each rank publishes its buffer's address and arrives; the others then read from it. The buffer stays exposed until all have
//! reported that they are done. A rank that fails in between withdraws its buffer, and waits until no rank reads it. Values are
//! reduced in the order of ranks, as through slots, so both ways give the same bits.

use std::sync::atomic::Ordering;

use super::cross_memory::expose;
use super::slot_exchange::{REDUCED, SlotError, SlotExchange, SlotOp};
use crate::dtype::Element;
use crate::partition::chunk;
use crate::reduce::Reduction;
use crate::waiting::LinkError;

type Result<T> = std::result::Result<T, SlotError>;

/// Buffers from this many bytes on are exposed. Smaller ones go through slots, which saves a synchronisation.
const CROSS_MEMORY_FROM: usize = 128 << 10;

/// Bytes of another buffer that are read before they are reduced: at most half of a second-level cache.
const BLOCK: usize = 128 << 10;

/// Words of a rank's line: the buffer's address in two halves, a flag of exposure, and the rank whose buffer this one is reading,
/// plus one.
const ADDRESS: usize = 144;
const EXPOSED: usize = 152;
const READING: usize = 156;

impl SlotExchange {
    /// True if a buffer of this size is exposed.
    pub(crate) fn exposes(&self, bytes: usize) -> bool {
        bytes >= CROSS_MEMORY_FROM && self.cross_memory.is_some()
    }

    fn publish_address(&self, address: usize) {
        let address = address as u64;
        self.word(self.rank, ADDRESS).store(address as u32, Ordering::Relaxed);
        self.word(self.rank, ADDRESS + 4).store((address >> 32) as u32, Ordering::Relaxed);
        self.word(self.rank, EXPOSED).store(1, Ordering::SeqCst);
    }

    /// Exposes the buffer at an address from now on. Arrives at a piece and returns it.
    fn offer(&mut self, address: usize, op: SlotOp<'_>) -> u32 {
        self.publish_address(address);
        let piece = self.piece;
        self.piece = piece.wrapping_add(1);
        self.arrive(piece, op.note);
        piece
    }

    /// Calls `run`, which reads other ranks' buffers, once all have arrived at the piece. Returns when no rank needs this buffer
    /// any more.
    fn meeting(
        &mut self,
        piece: u32,
        op: SlotOp<'_>,
        run: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let met = self.others().try_for_each(|other| self.meet(other, piece, op));
        let result = met.and_then(|()| run(self));
        if result.is_err() {
            self.withdraw();
        }
        result
    }

    /// Withdraws this rank's buffer although others may not be done.
    fn withdraw(&self) {
        self.word(self.rank, EXPOSED).store(0, Ordering::SeqCst);
        for other in self.others() {
            // A process that reads memory that is gone gets an error, but a thread must not read it. It reads one block at a time,
            // no more.
            let here = self.cross_memory.as_ref().is_some_and(|memory| memory.is_here(other));
            while here && self.word(other, READING).load(Ordering::SeqCst) == self.rank as u32 + 1 {
                std::thread::yield_now();
            }
        }
    }

    /// Calls `read` with the address of `rank`'s buffer.
    fn reading(&self, rank: usize, read: impl FnOnce(usize) -> bool) -> Result<()> {
        let own = self.word(self.rank, READING);
        own.store(rank as u32 + 1, Ordering::SeqCst);
        // Sequentially consistent with the withdrawal: either this rank sees it, or it sees this rank's mark.
        let exposed = self.word(rank, EXPOSED).load(Ordering::SeqCst) == 1;
        let half = |at: usize| u64::from(self.word(rank, ADDRESS + at).load(Ordering::Relaxed));
        let there = exposed && read((half(0) | half(4) << 32) as usize);
        own.store(0, Ordering::SeqCst);
        if there { Ok(()) } else { Err(SlotError::Link(LinkError::Closed(rank))) }
    }

    /// own ← the reduction of all ranks' values. This rank's are there already or in `mine`; `offset` is their position in the
    /// buffers, in bytes.
    fn fold_exposed<T: Element>(
        &mut self,
        own: &mut [T],
        mine: Option<&[T]>,
        offset: usize,
        reduction: Reduction,
    ) -> Result<()> {
        let Some(cross_memory) = self.cross_memory.clone() else { return Ok(()) };
        let (op, rank, world) = (reduction.op, self.rank, self.world);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(2 * BLOCK / 8, 0);
        let (theirs, acc) = scratch.split_at_mut(BLOCK / 8);
        let mut start = offset;
        let mut result = Ok(());
        for block in own.chunks_mut(BLOCK / size_of::<T>()) {
            if let Some(mine) = mine {
                let at = (start - offset) / size_of::<T>();
                block.copy_from_slice(&mine[at..at + block.len()]);
            }
            let mut add = |from: usize, acc: &mut [T]| {
                self.reading(from, |address| cross_memory.reduce(from, address + start, op, acc, theirs))
            };
            result = if rank < 2 {
                // The first two may be swapped. From the third on, the ranks before this one come first.
                (0..world).filter(|from| *from != rank).try_for_each(|from| add(from, block))
            } else {
                let acc = &mut bytemuck::cast_slice_mut::<u64, T>(acc)[..block.len()];
                self.reading(0, |address| {
                    cross_memory.read(0, address + start, bytemuck::cast_slice_mut(acc))
                })
                .and_then(|()| (1..rank).try_for_each(|from| add(from, acc)))
                .and_then(|()| {
                    reduction.combine(acc, block);
                    (rank + 1..world).try_for_each(|from| add(from, acc))
                })
                .map(|()| block.copy_from_slice(acc))
            };
            if result.is_err() {
                break;
            }
            reduction.complete(block);
            start += size_of_val(block);
        }
        self.scratch = scratch;
        result
    }

    /// Copies another rank's chunk of its buffer into this one's.
    fn copy_exposed<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        let Some(cross_memory) = &self.cross_memory else { return Ok(()) };
        let range = chunk(values.len(), self.world, from);
        let mut start = range.start * size_of::<T>();
        // In blocks, so that a rank that fails is not kept for long.
        for block in bytemuck::cast_slice_mut::<T, u8>(&mut values[range]).chunks_mut(8 * BLOCK) {
            self.reading(from, |address| cross_memory.read(from, address.wrapping_add(start), block))?;
            start += block.len();
        }
        Ok(())
    }

    pub(in crate::shared) fn all_reduce_cross_memory<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        op: SlotOp<'_>,
    ) -> Result<()> {
        let piece = self.offer(expose(values), op);
        self.meeting(piece, op, |slots| {
            let own = chunk(values.len(), slots.world, slots.rank);
            let offset = own.start * size_of::<T>();
            slots.fold_exposed(&mut values[own], None, offset, reduction)?;
            // A rank that has reduced its chunk has read it in all buffers, so it may be overwritten there.
            slots.publish(REDUCED, piece.wrapping_add(1));
            for other in slots.others() {
                slots.wait(other, REDUCED, piece.wrapping_add(1), op)?;
                slots.copy_exposed(values, other)?;
            }
            let last = slots.gather_around(op)?;
            slots.publish(REDUCED, last.wrapping_add(1));
            Ok(())
        })
    }

    /// Reduces this rank's chunk into `part` if there is one, which has its length, and otherwise in place.
    pub(crate) fn reduce_scatter_cross_memory<T: Element>(
        &mut self,
        values: &mut [T],
        part: Option<&mut [T]>,
        reduction: Reduction,
        op: SlotOp<'_>,
    ) -> Result<()> {
        let piece = self.offer(expose(values), op);
        self.meeting(piece, op, |slots| {
            let own = chunk(values.len(), slots.world, slots.rank);
            let offset = own.start * size_of::<T>();
            match part {
                Some(part) => slots.fold_exposed(part, Some(&values[own]), offset, reduction)?,
                None => slots.fold_exposed(&mut values[own], None, offset, reduction)?,
            }
            slots.part(piece, op)
        })
    }

    /// Copies every rank's chunk to all buffers, from its `part` if there is one, which has its length.
    pub(crate) fn all_gather_cross_memory<T: Element>(
        &mut self,
        values: &mut [T],
        part: Option<&mut [T]>,
        op: SlotOp<'_>,
    ) -> Result<()> {
        let piece = match part {
            Some(part) => {
                let own = chunk(values.len(), self.world, self.rank);
                // The address of a buffer that would have the part in its place. Other ranks read nothing but the part.
                let address = expose(part).wrapping_sub(own.start * size_of::<T>());
                let piece = self.offer(address, op);
                values[own].copy_from_slice(part);
                piece
            }
            None => self.offer(expose(values), op),
        };
        self.meeting(piece, op, |slots| {
            slots.others().try_for_each(|other| slots.copy_exposed(values, other))?;
            slots.part(piece, op)
        })
    }
}
