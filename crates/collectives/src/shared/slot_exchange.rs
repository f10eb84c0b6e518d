//! Slots and counters: how ranks meet in memory that all map.
//!
//! Every operation goes through the slot exchange in *pieces*, numbered on and on alike on every rank, also on those
//! that have nothing to do in one. A rank's slots are used in turn by even and odd pieces.
//!
//! The rule that keeps readers and writers apart: a rank that has *arrived* at piece `p` has read all it needs of the
//! pieces before `p - 1` and, if it writes in `p`, has written its slot. So a slot may be written for piece `p` once all
//! have arrived at piece `p - 1`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::cross_memory::CrossMemory;
use super::memory::SharedMemory;
use super::wait;
use crate::operation::Tag;
use crate::patience::{LinkError, Patience};

/// Bytes of a slot: what a rank puts in at a time. Two of them a rank stay in the second-level cache.
pub(super) const SLOT: usize = 256 << 10;

/// Bytes of a rank's counters and notes: lines of their own, so that ranks do not disturb each other's.
const LINE: usize = 384;

/// Words of a rank's line.
pub(super) const ARRIVED: usize = 0;
pub(super) const REDUCED: usize = 64;
const SLEEPERS: usize = 128;
const GONE: usize = 132;
/// The processor that a rank was on when it last published something, plus one.
const PROCESSOR: usize = 136;
/// The operations of a rank's last four pieces. It can be two ahead of one that still reads the first of them, and
/// writes the note of a piece before it waits for others there.
const NOTES: usize = 192;
const NOTE: usize = 32;
const NOTES_KEPT: u32 = 4;
/// The operation that a rank began last, whether it goes through the slot exchange or by messages.
const CURRENT: usize = 320;

/// In place of a sequence number, which is stored one higher, while the rest is being written, and before a rank has come to the
/// memory, which begins as zeros.
const UNSURE: u32 = 0;

/// Why an operation through the slot exchange failed; ranks are the slot exchange's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotError {
    /// A rank is gone or late.
    Link(LinkError),
    /// A rank is at another operation.
    Mismatch { rank: usize, note: Note },
}

/// What all ranks must agree on, as written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) sequence: u64,
    /// A packed [`Tag`].
    pub(crate) tag: (u32, u32, u64),
}

impl Note {
    pub(crate) fn new(sequence: u64, tag: Tag) -> Self {
        Self { sequence, tag: tag.packed() }
    }

    fn words(self) -> [u32; 6] {
        let (code, root, count) = self.tag;
        let (low, high) = (|value: u64| value as u32, |value: u64| (value >> 32) as u32);
        [low(self.sequence), high(self.sequence), code, root, low(count), high(count)]
    }

    fn from_words(words: [u32; 6]) -> Self {
        let long = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Self { sequence: long(words[0], words[1]), tag: (words[2], words[3], long(words[4], words[5])) }
    }
}

/// The operation that goes through the slot exchange now.
#[derive(Clone, Copy)]
pub(crate) struct Visit<'a> {
    pub(crate) note: Note,
    pub(crate) patience: &'a Patience,
}

/// Who does something in a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    All,
    Only(usize),
}

impl Who {
    fn includes(self, rank: usize) -> bool {
        self == Self::All || self == Self::Only(rank)
    }
}

/// One rank's view of the memory that all share.
pub(crate) struct SlotExchange {
    pub(super) memory: SharedMemory,
    pub(super) rank: usize,
    pub(super) world: usize,
    /// Pieces that have gone through so far, the same on every rank; slots are used in turn.
    pub(super) piece: u32,
    /// How often to look before sleeping.
    looks: u32,
    background: bool,
    /// How others' buffers are read where they lie, if they can be.
    pub(super) cross_memory: Option<CrossMemory>,
    /// For what is read of them.
    pub(super) scratch: Vec<u64>,
}

impl Drop for SlotExchange {
    /// Who still waits for this rank learns that it will not come.
    fn drop(&mut self) {
        self.word(self.rank, GONE).store(1, Ordering::SeqCst);
        for at in [ARRIVED, REDUCED] {
            wait::wake(self.word(self.rank, at));
        }
    }
}

impl SlotExchange {
    /// Bytes of the memory for so many ranks.
    pub(crate) fn size(world: usize) -> usize {
        (world * (LINE + 4 * SLOT)).next_multiple_of(64)
    }

    pub(crate) fn new(memory: SharedMemory, rank: usize, world: usize) -> Self {
        let looks = wait::looks(world);
        let (piece, background, cross_memory, scratch) = (0, false, None, Vec::new());
        Self { memory, rank, world, piece, looks, background, cross_memory, scratch }
    }

    /// This exchange with a way to read others' buffers where they lie.
    pub(crate) fn with_cross_memory(mut self, cross_memory: Option<CrossMemory>) -> Self {
        self.cross_memory = cross_memory;
        self
    }

    /// Whether operations run beside computing.
    pub(crate) fn in_background(&mut self, yes: bool) {
        self.background = yes;
    }

    pub(super) fn word(&self, rank: usize, at: usize) -> &AtomicU32 {
        self.memory.word(rank * LINE + at)
    }

    /// Where a rank's slot for what others read begins, for a piece.
    pub(super) fn slot(&self, rank: usize, piece: u32) -> usize {
        self.world * LINE + (rank * 4 + (piece as usize % 2)) * SLOT
    }

    /// Where a rank's results begin, for a piece.
    pub(super) fn result(&self, rank: usize, piece: u32) -> usize {
        self.slot(rank, piece) + 2 * SLOT
    }

    /// All ranks but this one, from the next on.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |step| (rank + step) % world)
    }

    /// Says that this rank has come to `value`, and wakes who sleeps on that.
    pub(super) fn publish(&self, at: usize, value: u32) {
        self.word(self.rank, PROCESSOR).store(wait::processor(), Ordering::Relaxed);
        wait::publish(self.word(self.rank, at), value, self.word(self.rank, SLEEPERS));
    }

    /// Says that this rank has arrived at a piece of an operation.
    pub(super) fn arrive(&self, piece: u32, note: Note) {
        let at = NOTES + (piece % NOTES_KEPT) as usize * NOTE;
        for (i, value) in note.words().into_iter().enumerate() {
            self.word(self.rank, at + 4 * i).store(value, Ordering::Relaxed);
        }
        self.publish(ARRIVED, piece.wrapping_add(1));
    }

    /// Notes which operation this rank begins, for ranks that wait for it at another.
    pub(crate) fn begin(&self, note: Note) {
        let word = |i: usize| self.word(self.rank, CURRENT + 4 * i);
        let [sequence, _, rest @ ..] = note.words();
        word(0).store(UNSURE, Ordering::Relaxed);
        for (i, value) in rest.into_iter().enumerate() {
            word(i + 1).store(value, Ordering::Release);
        }
        word(0).store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// What `rank` is at, if that shows that it will not come to the operation of `note`.
    fn elsewhere(&self, rank: usize, note: Note) -> Option<SlotError> {
        let word = |i: usize| self.word(rank, CURRENT + 4 * i).load(Ordering::Acquire);
        let before = word(0);
        let [code, root, low, high] = [word(1), word(2), word(3), word(4)];
        let tag = (code, root, u64::from(low) | u64::from(high) << 32);
        let steady = before != UNSURE && word(0) == before;
        let ahead = before.wrapping_sub(1).wrapping_sub(note.sequence as u32) as i32;
        let other = ahead > 0 || (ahead == 0 && tag != note.tag);
        let sequence = note.sequence.wrapping_add_signed(i64::from(ahead));
        (steady && other).then_some(SlotError::Mismatch { rank, note: Note { sequence, tag } })
    }

    /// Waits until `rank` has come to `value`.
    pub(super) fn wait(&self, rank: usize, at: usize, value: u32, visit: Visit<'_>) -> Result<(), SlotError> {
        let word = self.word(rank, at);
        let there = |found: u32| found.wrapping_sub(value) as i32 >= 0;
        let looks = if self.background { self.looks.min(wait::FEW) } else { self.looks };
        if wait::look(word, there, looks, self.word(rank, PROCESSOR)) {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            if wait::nap(word, there, self.word(rank, SLEEPERS)) {
                return Ok(());
            }
            let left = self.word(rank, GONE).load(Ordering::SeqCst) != 0;
            let late = || there(word.load(Ordering::SeqCst));
            if (left && !late()) || visit.patience.failure.is_set() {
                return Err(SlotError::Link(LinkError::Closed(rank)));
            }
            if let Some(error) = self.elsewhere(rank, visit.note).filter(|_| !late()) {
                return Err(error);
            }
            if start.elapsed() > visit.patience.timeout {
                return Err(SlotError::Link(LinkError::Timeout(rank)));
            }
        }
    }

    /// Waits until a rank has arrived at a piece, and checks that it is at the same operation.
    pub(super) fn meet(&self, rank: usize, piece: u32, visit: Visit<'_>) -> Result<(), SlotError> {
        self.wait(rank, ARRIVED, piece.wrapping_add(1), visit)?;
        let at = NOTES + (piece % NOTES_KEPT) as usize * NOTE;
        let note =
            Note::from_words(std::array::from_fn(|i| self.word(rank, at + 4 * i).load(Ordering::Relaxed)));
        if note == visit.note { Ok(()) } else { Err(SlotError::Mismatch { rank, note }) }
    }

    /// Waits until this rank may write its slot for a piece.
    pub(super) fn claim(&self, piece: u32, visit: Visit<'_>) -> Result<(), SlotError> {
        self.others().try_for_each(|other| self.wait(other, ARRIVED, piece, visit))
    }

    /// Nobody waits for the second counter in an operation that does not use it; it goes along, never behind.
    pub(super) fn skip_reduced(&self) {
        self.word(self.rank, REDUCED).store(self.piece, Ordering::Relaxed);
    }

    /// One way through the slot exchange: in each of `pieces`, the `writers` put something into their slots, and the
    /// `readers` take it from there once all of it is in.
    ///
    /// `put(slots, slot, index)` copies to the byte offset `slot`; `take(slots, piece, index)` copies from the slots that
    /// [`SlotExchange::slot`] gives for `piece`. Both get the piece's index in this operation too.
    pub(super) fn pass(
        &mut self,
        visit: Visit<'_>,
        pieces: usize,
        (writers, readers): (Who, Who),
        mut put: impl FnMut(&Self, usize, usize),
        mut take: impl FnMut(&Self, u32, usize),
    ) -> Result<(), SlotError> {
        let first = self.piece;
        self.piece = first.wrapping_add(pieces as u32);
        for index in 0..pieces {
            let piece = first.wrapping_add(index as u32);
            if writers.includes(self.rank) {
                self.claim(piece, visit)?;
                put(self, self.slot(self.rank, piece), index);
            }
            self.arrive(piece, visit.note);
            if readers.includes(self.rank) {
                for other in self.others().filter(|other| writers.includes(*other)) {
                    self.meet(other, piece, visit)?;
                }
                take(self, piece, index);
            }
        }
        self.skip_reduced();
        Ok(())
    }
}
