//! Slots and counters, and the all-reduce through them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{futex, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::memory::SharedMemory;
use crate::algorithms::chunk;
use crate::dtype::{Element, ReduceOp};
use crate::engine::Tag;
use crate::failure::Failure;
use crate::transport::LinkError;

/// Buffers up to this many bytes are reduced by every rank for itself: more additions, and one meeting instead of two.
const SMALL: usize = 8 << 10;

/// Bytes of a slot: what a rank puts in at a time. Two of them a rank stay in the second-level cache.
const SLOT: usize = 256 << 10;

/// Bytes of a rank's counters and notes: lines of their own, so that ranks do not disturb each other's.
const LINE: usize = 320;

/// What is reduced before it is copied to where others read it: half of a first-level cache.
const BLOCK: usize = 16 << 10;

/// Words of a rank's line.
const ARRIVED: usize = 0;
const REDUCED: usize = 64;
const SLEEPERS: usize = 128;
const GONE: usize = 132;
/// The processor that a rank was on when it last published something, plus one.
const PROCESSOR: usize = 136;
/// The operation that a rank is at, twice, for slots in turn: sequence, kind and type, elements.
const NOTES: usize = 192;
const NOTE: usize = 32;
/// The operation that a rank began last, whether it goes through the board or by messages.
const CURRENT: usize = 256;

/// In place of a sequence number while the rest is being written.
const UNSURE: u32 = u32::MAX;

/// How long a waiting rank sleeps before it looks whether the world is broken.
const NAP: Duration = Duration::from_millis(20);

/// When to give up, and why to give up earlier.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    pub(crate) failure: &'a Failure,
    pub(crate) timeout: Duration,
}

/// Why an operation through the board failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BoardError {
    /// A rank is gone or late.
    Link(LinkError),
    /// A rank is at another operation: its sequence number and tag in numbers.
    Mismatch { rank: usize, sequence: u64, code: u32, count: u64 },
}

/// One rank's view of the memory that all share.
pub(crate) struct Board {
    memory: SharedMemory,
    rank: usize,
    world: usize,
    /// Pieces that have gone through so far, the same on every rank; slots are used in turn.
    piece: u32,
    /// How often to look before sleeping.
    looks: u32,
}

impl Drop for Board {
    /// Who still waits for this rank learns that it will not come.
    fn drop(&mut self) {
        self.word(self.rank, GONE).store(1, Ordering::SeqCst);
        for at in [ARRIVED, REDUCED] {
            let _ = futex::wake(self.word(self.rank, at), futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}

/// What all ranks must agree on, as written down.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Note {
    sequence: u64,
    code: u32,
    count: u64,
}

impl Note {
    fn new(sequence: u64, tag: Tag) -> Self {
        Self { sequence, code: tag.kind as u32 | (tag.dtype as u32) << 8, count: tag.count }
    }
}

impl Board {
    /// Bytes of the memory for a world.
    pub(super) fn size(world: usize) -> usize {
        world * (LINE + 4 * SLOT)
    }

    pub(super) fn new(memory: SharedMemory, rank: usize, world: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Looking is only faster while everybody has a core; else it takes the time of who is waited for.
        let looks = if world <= cores { 20_000 } else { 50 };
        let board = Self { memory, rank, world, piece: 0, looks };
        // No operation yet: the memory's zeros would be the first.
        board.word(rank, CURRENT).store(UNSURE, Ordering::Release);
        board
    }

    fn word(&self, rank: usize, at: usize) -> &AtomicU32 {
        self.memory.word(rank * LINE + at)
    }

    /// Where a rank's slot for what others reduce begins, for a piece.
    fn slot(&self, rank: usize, piece: u32) -> usize {
        self.world * LINE + (rank * 4 + (piece as usize % 2)) * SLOT
    }

    /// Where a rank's results begin, for a piece.
    fn result(&self, rank: usize, piece: u32) -> usize {
        self.slot(rank, piece) + 2 * SLOT
    }

    /// Says that this rank has come to `value`, and wakes who sleeps on that.
    fn publish(&self, at: usize, value: u32) {
        let word = self.word(self.rank, at);
        self.word(self.rank, PROCESSOR).store(sched_getcpu() as u32 + 1, Ordering::Relaxed);
        // Sequentially consistent with the sleepers' count: either they see the value or this rank sees them.
        word.store(value, Ordering::SeqCst);
        if self.word(self.rank, SLEEPERS).load(Ordering::SeqCst) > 0 {
            // Waking can only fail for an address that is not mapped.
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Notes which operation this rank begins, for ranks that wait for it at another.
    pub(crate) fn begin(&self, sequence: u64, tag: Tag) {
        let note = Note::new(sequence, tag);
        let word = |i: usize| self.word(self.rank, CURRENT + 4 * i);
        word(0).store(UNSURE, Ordering::Relaxed);
        word(1).store(note.code, Ordering::Release);
        word(2).store(note.count as u32, Ordering::Release);
        word(3).store((note.count >> 32) as u32, Ordering::Release);
        word(0).store(sequence as u32, Ordering::Release);
    }

    /// What `rank` is at, if that shows that it will not come to the operation of `note`.
    fn elsewhere(&self, rank: usize, note: Note) -> Option<BoardError> {
        let word = |i: usize| self.word(rank, CURRENT + 4 * i).load(Ordering::Acquire);
        let before = word(0);
        let (code, count) = (word(1), u64::from(word(2)) | u64::from(word(3)) << 32);
        let steady = before != UNSURE && word(0) == before;
        let ahead = before.wrapping_sub(note.sequence as u32) as i32;
        let other = ahead > 0 || (ahead == 0 && (code, count) != (note.code, note.count));
        let sequence = note.sequence.wrapping_add_signed(i64::from(ahead));
        (steady && other).then_some(BoardError::Mismatch { rank, sequence, code, count })
    }

    /// Waits until `rank` has come to `value` in the operation of `note`.
    fn wait(
        &self,
        rank: usize,
        at: usize,
        value: u32,
        note: Note,
        deadline: Deadline<'_>,
    ) -> Result<(), BoardError> {
        let word = self.word(rank, at);
        let there = |found: u32| found.wrapping_sub(value) as i32 >= 0;
        for look in 1..=self.looks {
            if there(word.load(Ordering::Acquire)) {
                return Ok(());
            }
            std::hint::spin_loop();
            if look.is_multiple_of(1 << 10) {
                self.make_way(rank);
            }
        }
        let start = Instant::now();
        let sleepers = self.word(rank, SLEEPERS);
        let nap = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
        loop {
            sleepers.fetch_add(1, Ordering::SeqCst);
            let found = word.load(Ordering::SeqCst);
            if !there(found) {
                // Returns at once if the word has changed meanwhile.
                let _ = futex::wait(word, futex::Flags::empty(), found, Some(&nap));
            }
            sleepers.fetch_sub(1, Ordering::SeqCst);
            if there(word.load(Ordering::Acquire)) {
                return Ok(());
            }
            let left =
                self.word(rank, GONE).load(Ordering::SeqCst) != 0 && !there(word.load(Ordering::SeqCst));
            if left || deadline.failure.get().is_some() {
                return Err(BoardError::Link(LinkError::Closed(rank)));
            }
            if let Some(error) = self.elsewhere(rank, note).filter(|_| !there(word.load(Ordering::SeqCst))) {
                return Err(error);
            }
            if start.elapsed() > deadline.timeout {
                return Err(BoardError::Link(LinkError::Timeout(rank)));
            }
        }
    }

    /// Moves to another processor if this rank looks for `rank` on the very one that that one needs. A scheduler may
    /// leave both there for seconds while another processor is idle.
    fn make_way(&self, rank: usize) {
        let own = sched_getcpu();
        if self.word(rank, PROCESSOR).load(Ordering::Relaxed) != own as u32 + 1 {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut others = allowed;
        others.unset(own);
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            // The set was just read, so it can be had again; if not, the thread stays where it is allowed.
            let _ = sched_setaffinity(None, &allowed);
        }
    }

    fn write_note(&self, piece: u32, note: Note) {
        let at = NOTES + (piece as usize % 2) * NOTE;
        let words = [
            note.sequence as u32,
            (note.sequence >> 32) as u32,
            note.code,
            note.count as u32,
            (note.count >> 32) as u32,
        ];
        for (i, value) in words.into_iter().enumerate() {
            self.word(self.rank, at + 4 * i).store(value, Ordering::Relaxed);
        }
    }

    fn read_note(&self, rank: usize, piece: u32) -> Note {
        let at = NOTES + (piece as usize % 2) * NOTE;
        let word = |i: usize| self.word(rank, at + 4 * i).load(Ordering::Relaxed);
        let long = |i: usize| u64::from(word(i)) | u64::from(word(i + 1)) << 32;
        Note { sequence: long(0), code: word(2), count: long(3) }
    }

    /// Waits until every other rank has put its part of a piece in, and checks that it is at the same operation.
    fn wait_for_all(&self, piece: u32, note: Note, deadline: Deadline<'_>) -> Result<(), BoardError> {
        for rank in (0..self.world).filter(|rank| *rank != self.rank) {
            self.wait(rank, ARRIVED, piece.wrapping_add(1), note, deadline)?;
            let theirs = self.read_note(rank, piece);
            if theirs != note {
                let Note { sequence, code, count } = theirs;
                return Err(BoardError::Mismatch { rank, sequence, code, count });
            }
        }
        Ok(())
    }

    /// Every rank's buffer becomes the reduction of all, the same bits everywhere.
    pub(crate) fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
        (sequence, tag): (u64, Tag),
        deadline: Deadline<'_>,
    ) -> Result<(), BoardError> {
        let note = Note::new(sequence, tag);
        if size_of_val(values) <= SMALL {
            return self.small(values, op, note, deadline);
        }
        let step = SLOT / size_of::<T>();
        let first = self.piece;
        let pieces = values.len().div_ceil(step) as u32;
        self.piece = first.wrapping_add(pieces);
        let part = |index: u32| {
            let start = index as usize * step;
            start..(start + step).min(values.len())
        };
        let ranges: Vec<_> = (0..pieces).map(part).collect();
        self.put_in(&values[ranges[0].clone()], first, note);
        for (index, range) in ranges.iter().enumerate() {
            let piece = first.wrapping_add(index as u32);
            self.wait_for_all(piece, note, deadline)?;
            self.reduce_own(&mut values[range.clone()], op, piece);
            self.publish(REDUCED, piece.wrapping_add(1));
            // Others may still be reducing; meanwhile the next piece goes in.
            if let Some(next) = ranges.get(index + 1) {
                self.put_in(&values[next.clone()], piece.wrapping_add(1), note);
            }
            for rank in (0..self.world).filter(|rank| *rank != self.rank) {
                self.wait(rank, REDUCED, piece.wrapping_add(1), note, deadline)?;
                let own = chunk(range.len(), self.world, rank);
                let to = &mut values[range.start + own.start..range.start + own.end];
                let at = self.result(rank, piece) + own.start * size_of::<T>();
                self.memory.copy_out(at, bytemuck::cast_slice_mut(to));
            }
        }
        Ok(())
    }

    /// Copies what others reduce of a piece into this rank's slot.
    fn put_in<T: Element>(&self, values: &[T], piece: u32, note: Note) {
        let own = chunk(values.len(), self.world, self.rank);
        let slot = self.slot(self.rank, piece);
        self.memory.copy_in(slot, bytemuck::cast_slice(&values[..own.start]));
        self.memory.copy_in(slot + own.end * size_of::<T>(), bytemuck::cast_slice(&values[own.end..]));
        self.write_note(piece, note);
        self.publish(ARRIVED, piece.wrapping_add(1));
    }

    /// Reduces this rank's part of a piece from all slots, in the order of ranks from this one on, and copies it to
    /// where the others read it.
    fn reduce_own<T: Element>(&self, values: &mut [T], op: ReduceOp, piece: u32) {
        let own = chunk(values.len(), self.world, self.rank);
        let (size, result) = (size_of::<T>(), self.result(self.rank, piece));
        let mut at = own.start;
        for block in values[own].chunks_mut(BLOCK / size) {
            for step in 1..self.world {
                let rank = (self.rank + step) % self.world;
                self.memory.reduce_from(self.slot(rank, piece) + at * size, op, block);
            }
            if op == ReduceOp::Mean {
                block.iter_mut().for_each(|value| *value = value.divide(self.world));
            }
            self.memory.copy_in(result + at * size, bytemuck::cast_slice(block));
            at += block.len();
        }
    }

    /// Every rank reduces everything for itself, in the order of ranks.
    fn small<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
        note: Note,
        deadline: Deadline<'_>,
    ) -> Result<(), BoardError> {
        let piece = self.piece;
        self.piece = piece.wrapping_add(1);
        self.memory.copy_in(self.slot(self.rank, piece), bytemuck::cast_slice(values));
        self.write_note(piece, note);
        self.publish(ARRIVED, piece.wrapping_add(1));
        // Nobody waits for this one's second counter; it goes along so that it is never behind.
        self.word(self.rank, REDUCED).store(piece.wrapping_add(1), Ordering::Relaxed);
        self.wait_for_all(piece, note, deadline)?;
        self.memory.copy_out(self.slot(0, piece), bytemuck::cast_slice_mut(values));
        for rank in 1..self.world {
            self.memory.reduce_from(self.slot(rank, piece), op, values);
        }
        if op == ReduceOp::Mean {
            values.iter_mut().for_each(|value| *value = value.divide(self.world));
        }
        Ok(())
    }
}
