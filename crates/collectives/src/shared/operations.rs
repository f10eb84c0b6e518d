//! Operations through the slot exchange.
//!
//! Values are always reduced in the order of ranks, so a reduce-scatter, a reduce and an all-reduce of the same buffers give the
//! same bits.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::slot_exchange::{REDUCED, Ranks, SLOT, SlotError, SlotExchange, SlotOp};
use crate::dtype::Element;
use crate::partition::chunk;
use crate::reduce::Reduction;

type Result<T> = std::result::Result<T, SlotError>;

/// Buffers up to this many bytes are reduced by every rank for itself: more additions, but one synchronisation instead of two.
const SMALL: usize = 8 << 10;

/// Bytes that are reduced before they are copied for others: half of a first-level cache.
pub(super) const BLOCK: usize = 16 << 10;

/// Returns part `index` of `range` in steps; empty beyond its end.
fn step_of(range: &Range<usize>, step: usize, index: usize) -> Range<usize> {
    let start = (range.start + index * step).min(range.end);
    start..(start + step).min(range.end)
}

impl SlotExchange {
    /// own ← the reduction of all ranks' values. `at` returns the byte offsets of the others' values.
    pub(super) fn fold<T: Element>(
        &self,
        own: &mut [T],
        at: impl Fn(usize) -> usize,
        reduction: Reduction,
        mut done: impl FnMut(usize, &[T]),
    ) {
        let op = reduction.op;
        let mut scratch = [0_u64; BLOCK / 8];
        let mut start = 0;
        for block in own.chunks_mut(BLOCK / size_of::<T>()) {
            let from = |rank: usize| at(rank) + start * size_of::<T>();
            // The first two may be swapped. From the third on, the ranks before this one come first.
            if self.rank < 2 {
                (0..self.world)
                    .filter(|rank| *rank != self.rank)
                    .for_each(|rank| self.memory.reduce_from(from(rank), op, block));
            } else {
                let acc = &mut bytemuck::cast_slice_mut::<u64, T>(&mut scratch)[..block.len()];
                self.memory.copy_out(from(0), bytemuck::cast_slice_mut(acc));
                (1..self.rank).for_each(|rank| self.memory.reduce_from(from(rank), op, acc));
                reduction.combine(acc, block);
                (self.rank + 1..self.world).for_each(|rank| self.memory.reduce_from(from(rank), op, acc));
                block.copy_from_slice(acc);
            }
            reduction.complete(block);
            done(start, block);
            start += block.len();
        }
    }

    /// Replaces every rank's buffer by the reduction of all.
    pub(crate) fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        op: SlotOp<'_>,
    ) -> Result<()> {
        if size_of_val(values) <= SMALL {
            return self.all_reduce_small(values, reduction, op);
        }
        if self.exposes(size_of_val(values)) {
            return self.all_reduce_cross_memory(values, reduction, op);
        }
        let step = SLOT / size_of::<T>();
        let first = self.piece;
        let pieces = values.len().div_ceil(step);
        self.piece = first.wrapping_add(pieces as u32);
        let whole = 0..values.len();
        self.put_foreign(&values[step_of(&whole, step, 0)], first, op)?;
        for index in 0..pieces {
            let (piece, range) = (first.wrapping_add(index as u32), step_of(&whole, step, index));
            for other in self.others() {
                self.meet(other, piece, op)?;
            }
            self.reduce_own(&mut values[range.clone()], reduction, piece);
            self.publish(REDUCED, piece.wrapping_add(1));
            // Other ranks may still be reducing, so the next piece is written now.
            if index + 1 < pieces {
                self.put_foreign(&values[step_of(&whole, step, index + 1)], piece.wrapping_add(1), op)?;
            }
            for rank in self.others() {
                self.wait(rank, REDUCED, piece.wrapping_add(1), op)?;
                let own = chunk(range.len(), self.world, rank);
                let to = &mut values[range.start + own.start..range.start + own.end];
                let at = self.result(rank, piece) + own.start * size_of::<T>();
                self.memory.copy_out(at, bytemuck::cast_slice_mut(to));
            }
        }
        Ok(())
    }

    /// Copies a piece of the buffer, for others to reduce, into this rank's slot.
    fn put_foreign<T: Element>(&self, values: &[T], piece: u32, op: SlotOp<'_>) -> Result<()> {
        self.claim(piece, op)?;
        let own = chunk(values.len(), self.world, self.rank);
        let slot = self.slot(self.rank, piece);
        self.memory.copy_in(slot, bytemuck::cast_slice(&values[..own.start]));
        self.memory.copy_in(slot + own.end * size_of::<T>(), bytemuck::cast_slice(&values[own.end..]));
        self.arrive(piece, op.note);
        Ok(())
    }

    /// Reduces this rank's part of a piece from all slots and copies it to where the others read it.
    fn reduce_own<T: Element>(&self, values: &mut [T], reduction: Reduction, piece: u32) {
        let own = chunk(values.len(), self.world, self.rank);
        let at = own.start * size_of::<T>();
        let result = self.result(self.rank, piece) + at;
        let at_rank = |rank: usize| self.slot(rank, piece) + at;
        self.fold(&mut values[own], at_rank, reduction, |start, block| {
            self.memory.copy_in(result + start * size_of::<T>(), bytemuck::cast_slice(block));
        });
    }

    /// Reduces everything on every rank.
    fn all_reduce_small<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        op: SlotOp<'_>,
    ) -> Result<()> {
        let piece = self.piece;
        self.piece = piece.wrapping_add(1);
        self.claim(piece, op)?;
        self.memory.copy_in(self.slot(self.rank, piece), bytemuck::cast_slice(values));
        self.arrive(piece, op.note);
        self.skip_reduced();
        for other in self.others() {
            self.meet(other, piece, op)?;
        }
        // From the slots in the order of ranks, with this rank's own, so that all ranks compute the same.
        self.memory.copy_out(self.slot(0, piece), bytemuck::cast_slice_mut(values));
        (1..self.world)
            .for_each(|rank| self.memory.reduce_from(self.slot(rank, piece), reduction.op, values));
        reduction.complete(values);
        Ok(())
    }

    /// Replaces the root's buffer by the reduction of all.
    pub(crate) fn reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        root: usize,
        op: SlotOp<'_>,
    ) -> Result<()> {
        let (step, whole) = (SLOT / size_of::<T>(), 0..values.len());
        let pieces = values.len().div_ceil(step).max(1);
        let values = RefCell::new(values);
        self.pass(
            op,
            pieces,
            (Ranks::All, Ranks::Only(root)),
            |slots, slot, index| {
                let range = step_of(&whole, step, index);
                slots.memory.copy_in(slot, bytemuck::cast_slice(&values.borrow()[range]));
            },
            |slots, piece, index| {
                let own = &mut values.borrow_mut()[step_of(&whole, step, index)];
                slots.fold(own, |rank| slots.slot(rank, piece), reduction, |_, _| ());
            },
        )
    }

    /// Returns the bytes of a slot's part for one rank, if a slot holds a part for each.
    fn share(&self, header: usize) -> usize {
        ((SLOT - header) / self.world) & !63
    }

    /// Replaces this rank's chunk of its buffer by the reduction of all; the rest stays.
    pub(crate) fn reduce_scatter<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        op: SlotOp<'_>,
    ) -> Result<()> {
        if self.exposes(size_of_val(values)) {
            return self.reduce_scatter_cross_memory(values, None, reduction, op);
        }
        let (world, rank, len, share) = (self.world, self.rank, values.len(), self.share(0));
        let step = share / size_of::<T>();
        let pieces = len.div_ceil(world).div_ceil(step).max(1);
        let values = RefCell::new(values);
        self.pass(
            op,
            pieces,
            (Ranks::All, Ranks::All),
            |slots, slot, index| {
                for to in slots.others() {
                    let range = step_of(&chunk(len, world, to), step, index);
                    slots.memory.copy_in(slot + to * share, bytemuck::cast_slice(&values.borrow()[range]));
                }
            },
            |slots, piece, index| {
                let own = &mut values.borrow_mut()[step_of(&chunk(len, world, rank), step, index)];
                slots.fold(own, |from| slots.slot(from, piece) + rank * share, reduction, |_, _| ());
            },
        )
    }

    /// Copies every rank's chunk to all buffers.
    pub(crate) fn all_gather<T: Element>(&mut self, values: &mut [T], op: SlotOp<'_>) -> Result<()> {
        if self.exposes(size_of_val(values)) {
            return self.all_gather_cross_memory(values, None, op);
        }
        let (world, rank, len, step) = (self.world, self.rank, values.len(), SLOT / size_of::<T>());
        let pieces = len.div_ceil(world).div_ceil(step).max(1);
        let values = RefCell::new(values);
        self.pass(
            op,
            pieces,
            (Ranks::All, Ranks::All),
            |slots, slot, index| {
                let range = step_of(&chunk(len, world, rank), step, index);
                slots.memory.copy_in(slot, bytemuck::cast_slice(&values.borrow()[range]));
            },
            |slots, piece, index| {
                for from in slots.others() {
                    let to = &mut values.borrow_mut()[step_of(&chunk(len, world, from), step, index)];
                    slots.memory.copy_out(slots.slot(from, piece), bytemuck::cast_slice_mut(to));
                }
            },
        )
    }

    /// Copies the root's bytes to all ranks.
    pub(crate) fn broadcast(&mut self, bytes: &mut [u8], root: usize, op: SlotOp<'_>) -> Result<()> {
        let whole = 0..bytes.len();
        let pieces = bytes.len().div_ceil(SLOT).max(1);
        let bytes = RefCell::new(bytes);
        self.pass(
            op,
            pieces,
            (Ranks::Only(root), Ranks::All),
            |slots, slot, index| {
                slots.memory.copy_in(slot, &bytes.borrow()[step_of(&whole, SLOT, index)]);
            },
            |slots, piece, index| {
                if slots.rank != root {
                    let to = &mut bytes.borrow_mut()[step_of(&whole, SLOT, index)];
                    slots.memory.copy_out(slots.slot(root, piece), to);
                }
            },
        )
    }

    /// Returns the bytes of all ranks, of any lengths, at the root, or on every rank without one. Elsewhere the list is empty.
    pub(crate) fn gather(&mut self, own: &[u8], root: Option<usize>, op: SlotOp<'_>) -> Result<Vec<Vec<u8>>> {
        const HEADER: usize = 8;
        let whole = 0..own.len();
        let wanted = root.is_none_or(|root| root == self.rank);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); self.world];
        if wanted {
            all[self.rank] = own.to_vec();
        }
        let longest = Cell::new(own.len());
        let put = |slots: &Self, slot: usize, index: usize| {
            slots.memory.copy_in(slot, &(own.len() as u64).to_le_bytes());
            slots.memory.copy_in(slot + HEADER, &own[step_of(&whole, SLOT - HEADER, index)]);
        };
        let mut take = |slots: &Self, piece: u32, index: usize| {
            for from in slots.others() {
                let slot = slots.slot(from, piece);
                let len = slots.long_at(slot);
                longest.set(longest.get().max(len));
                if wanted {
                    let range = step_of(&(0..len), SLOT - HEADER, index);
                    let start = all[from].len();
                    all[from].resize(start + range.len(), 0);
                    slots.memory.copy_out(slot + HEADER, &mut all[from][start..]);
                }
            }
        };
        // All ranks read the lengths in the first piece, and so know the number of pieces.
        self.pass(op, 1, (Ranks::All, Ranks::All), &put, &mut take)?;
        let more = longest.get().div_ceil(SLOT - HEADER).saturating_sub(1);
        let readers = root.map_or(Ranks::All, Ranks::Only);
        let put_next = |slots: &Self, slot, index| put(slots, slot, index + 1);
        let take_next = |slots: &Self, piece, index| take(slots, piece, index + 1);
        self.pass(op, more, (Ranks::All, readers), put_next, take_next)?;
        Ok(if wanted { all } else { Vec::new() })
    }

    fn long_at(&self, offset: usize) -> usize {
        let mut bytes = [0; 8];
        self.memory.copy_out(offset, &mut bytes);
        u64::from_le_bytes(bytes) as usize
    }

    /// Returns each rank's part from the root, or from every rank without one, by sender.
    pub(crate) fn scatter(
        &mut self,
        parts: &[&[u8]],
        root: Option<usize>,
        op: SlotOp<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let (rank, world) = (self.rank, self.world);
        let header = (8 * world).next_multiple_of(64);
        let share = self.share(header);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); world];
        all[rank] = parts.get(rank).map_or_else(Vec::new, |part| part.to_vec());
        let longest = Cell::new(parts.iter().map(|part| part.len()).max().unwrap_or(0));
        let put = |slots: &Self, slot: usize, index: usize| {
            for (to, part) in parts.iter().enumerate() {
                slots.memory.copy_in(slot + 8 * to, &(part.len() as u64).to_le_bytes());
                let range = step_of(&(0..part.len()), share, index);
                slots.memory.copy_in(slot + header + to * share, &part[range]);
            }
        };
        let mut take = |slots: &Self, piece: u32, index: usize| {
            for from in slots.others().filter(|from| root.is_none_or(|root| root == *from)) {
                let slot = slots.slot(from, piece);
                (0..world).for_each(|to| longest.set(longest.get().max(slots.long_at(slot + 8 * to))));
                let range = step_of(&(0..slots.long_at(slot + 8 * rank)), share, index);
                let start = all[from].len();
                all[from].resize(start + range.len(), 0);
                slots.memory.copy_out(slot + header + rank * share, &mut all[from][start..]);
            }
        };
        let writers = root.map_or(Ranks::All, Ranks::Only);
        // The first piece has all lengths, and so the number of pieces.
        self.pass(op, 1, (writers, Ranks::All), put, &mut take)?;
        let more = longest.get().div_ceil(share).saturating_sub(1);
        let put_next = |slots: &Self, slot, index| put(slots, slot, index + 1);
        let take_next = |slots: &Self, piece, index| take(slots, piece, index + 1);
        self.pass(op, more, (writers, Ranks::All), put_next, take_next)?;
        Ok(all)
    }
}
