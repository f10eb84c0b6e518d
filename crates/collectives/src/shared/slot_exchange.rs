//! Slots and counters: synchronisation of ranks in memory that all map.
//!
//! Every operation goes through the slot exchange in *pieces*. All ranks number them consecutively, even ranks that have nothing to
//! do in one. Even and odd pieces alternate between a rank's two slots.
//!
//! The rule that separates readers from writers: a rank that has *arrived* at piece `p` has read everything it needs of the pieces
//! before `p - 1` and, if it writes in `p`, has written its slot. So a slot may be written for piece `p` once all ranks have
//! arrived at piece `p - 1`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use super::cross_memory::CrossMemory;
use super::memory::SharedMemory;
use super::wait;
use crate::operation::Tag;
use crate::waiting::{LinkError, WaitLimits};

/// Bytes of a slot. Two for each rank stay in the second-level cache.
pub(super) const SLOT: usize = 256 << 10;

/// Bytes of a rank's counters and notes, in separate cache lines so that ranks do not disturb each other.
const LINE: usize = 384;

/// Offsets of words in a rank's line.
pub(super) const ARRIVED: usize = 0;
pub(super) const REDUCED: usize = 64;
const SLEEPERS: usize = 128;
const GONE: usize = 132;
/// The CPU number of a rank when it last published a value, plus one.
const CPU: usize = 136;
/// The operations of a rank's last four pieces. A rank can be two pieces ahead of one that still reads the first of them, and
/// writes the note of a piece before it waits for others there.
const NOTES: usize = 192;
const NOTE: usize = 32;
const NOTES_KEPT: u32 = 4;
/// The last operation that a rank began, through the slot exchange or by messages.
const CURRENT: usize = 320;

/// The value of a sequence number, which is stored plus one, while the rest is written, and before a rank has joined the zeroed
/// memory.
const UNSURE: u32 = 0;

/// The reason why an operation through the slot exchange failed, with the slot exchange's rank numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotError {
    /// A rank is gone or late.
    Link(LinkError),
    /// A rank is at another operation.
    Mismatch { rank: usize, note: Note },
}

/// The properties of an operation that all ranks must agree on, as words.
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

/// The current operation of the slot exchange.
#[derive(Clone, Copy)]
pub(crate) struct SlotOp<'a> {
    pub(crate) note: Note,
    pub(crate) limits: &'a WaitLimits,
}

/// The ranks that act in a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranks {
    All,
    Only(usize),
}

impl Ranks {
    fn includes(self, rank: usize) -> bool {
        self == Self::All || self == Self::Only(rank)
    }
}

/// One rank's view of the shared memory.
pub(crate) struct SlotExchange {
    pub(super) memory: SharedMemory,
    pub(super) rank: usize,
    pub(super) world: usize,
    /// Pieces so far, equal on every rank.
    pub(super) piece: u32,
    /// The number of polls before sleeping.
    looks: u32,
    /// True if the last sleep was longer than polling would have been.
    was_late: AtomicBool,
    background: bool,
    /// Access to buffers of other ranks, if it is possible.
    pub(super) cross_memory: Option<CrossMemory>,
    /// Memory for values read from them.
    pub(super) scratch: Vec<u64>,
}

impl Drop for SlotExchange {
    /// Tells waiting ranks that this one will not arrive.
    fn drop(&mut self) {
        self.word(self.rank, GONE).store(1, Ordering::SeqCst);
        for at in [ARRIVED, REDUCED] {
            wait::wake(self.word(self.rank, at));
        }
    }
}

impl SlotExchange {
    /// Returns the bytes of the memory for a number of ranks.
    pub(crate) fn size(world: usize) -> usize {
        (world * (LINE + 4 * SLOT)).next_multiple_of(64)
    }

    pub(crate) fn new(memory: SharedMemory, rank: usize, world: usize) -> Self {
        let looks = wait::looks(world);
        let (piece, background, cross_memory, scratch) = (0, false, None, Vec::new());
        let was_late = AtomicBool::new(false);
        Self { memory, rank, world, piece, looks, was_late, background, cross_memory, scratch }
    }

    /// Returns this exchange with access to buffers of other ranks.
    pub(crate) fn with_cross_memory(mut self, cross_memory: Option<CrossMemory>) -> Self {
        self.cross_memory = cross_memory;
        self
    }

    /// Sets whether operations run in the background of a computation.
    pub(crate) fn in_background(&mut self, yes: bool) {
        self.background = yes;
    }

    pub(super) fn word(&self, rank: usize, at: usize) -> &AtomicU32 {
        self.memory.word(rank * LINE + at)
    }

    /// Returns the offset of a rank's slot for a piece.
    pub(super) fn slot(&self, rank: usize, piece: u32) -> usize {
        self.world * LINE + (rank * 4 + (piece as usize % 2)) * SLOT
    }

    /// Returns the offset of a rank's results for a piece.
    pub(super) fn result(&self, rank: usize, piece: u32) -> usize {
        self.slot(rank, piece) + 2 * SLOT
    }

    /// Returns all ranks but this one, from the next on.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |step| (rank + step) % world)
    }

    /// Publishes that this rank has reached `value`, and wakes ranks that sleep on it.
    pub(super) fn publish(&self, at: usize, value: u32) {
        self.word(self.rank, CPU).store(wait::current_cpu(), Ordering::Relaxed);
        wait::publish(self.word(self.rank, at), value, self.word(self.rank, SLEEPERS));
    }

    /// Publishes that this rank has arrived at a piece of an operation.
    pub(super) fn arrive(&self, piece: u32, note: Note) {
        let at = NOTES + (piece % NOTES_KEPT) as usize * NOTE;
        for (i, value) in note.words().into_iter().enumerate() {
            self.word(self.rank, at + 4 * i).store(value, Ordering::Relaxed);
        }
        self.publish(ARRIVED, piece.wrapping_add(1));
    }

    /// Publishes the operation that this rank begins, for ranks that wait for it at another.
    pub(crate) fn begin(&self, note: Note) {
        let word = |i: usize| self.word(self.rank, CURRENT + 4 * i);
        let [sequence, _, rest @ ..] = note.words();
        word(0).store(UNSURE, Ordering::Relaxed);
        for (i, value) in rest.into_iter().enumerate() {
            word(i + 1).store(value, Ordering::Release);
        }
        word(0).store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Returns a mismatch if `rank` is at an operation after which it cannot join the one of `note`.
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

    /// Waits until `rank` has reached `value`.
    pub(super) fn wait(&self, rank: usize, at: usize, value: u32, op: SlotOp<'_>) -> Result<(), SlotError> {
        let word = self.word(rank, at);
        let there = |found: u32| found.wrapping_sub(value) as i32 >= 0;
        let sleeps_soon = self.background || self.was_late.load(Ordering::Relaxed);
        let looks = if sleeps_soon { self.looks.min(wait::FEW) } else { self.looks };
        if wait::look(word, there, looks, self.word(rank, CPU)) {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            if wait::nap(word, there, self.word(rank, SLEEPERS)) {
                self.was_late.store(start.elapsed() > wait::WORTH_POLLING, Ordering::Relaxed);
                return Ok(());
            }
            let left = self.word(rank, GONE).load(Ordering::SeqCst) != 0;
            let late = || there(word.load(Ordering::SeqCst));
            if (left && !late()) || op.limits.failure.is_set() {
                return Err(SlotError::Link(LinkError::Closed(rank)));
            }
            if let Some(error) = self.elsewhere(rank, op.note).filter(|_| !late()) {
                return Err(error);
            }
            if start.elapsed() > op.limits.timeout {
                return Err(SlotError::Link(LinkError::Timeout(rank)));
            }
        }
    }

    /// Waits until a rank has arrived at a piece, and checks that it is at the same operation.
    pub(super) fn meet(&self, rank: usize, piece: u32, op: SlotOp<'_>) -> Result<(), SlotError> {
        self.wait(rank, ARRIVED, piece.wrapping_add(1), op)?;
        let at = NOTES + (piece % NOTES_KEPT) as usize * NOTE;
        let note =
            Note::from_words(std::array::from_fn(|i| self.word(rank, at + 4 * i).load(Ordering::Relaxed)));
        if note == op.note { Ok(()) } else { Err(SlotError::Mismatch { rank, note }) }
    }

    /// Waits until this rank may write its slot for a piece.
    pub(super) fn claim(&self, piece: u32, op: SlotOp<'_>) -> Result<(), SlotError> {
        self.others().try_for_each(|other| self.wait(other, ARRIVED, piece, op))
    }

    /// Advances the second counter in an operation without it, so that it never falls behind.
    pub(super) fn skip_reduced(&self) {
        self.word(self.rank, REDUCED).store(self.piece, Ordering::Relaxed);
    }

    /// Runs an operation of `pieces` pieces: the `writers` fill their slots, and the `readers` read once all slots of a piece are
    /// filled.
    ///
    /// `put(slots, slot, index)` copies to the byte offset `slot`; `take(slots, piece, index)` copies from the slots that
    /// [`SlotExchange::slot`] returns for `piece`. `index` is the piece's number in this operation.
    pub(super) fn pass(
        &mut self,
        op: SlotOp<'_>,
        pieces: usize,
        (writers, readers): (Ranks, Ranks),
        mut put: impl FnMut(&Self, usize, usize),
        mut take: impl FnMut(&Self, u32, usize),
    ) -> Result<(), SlotError> {
        let first = self.piece;
        self.piece = first.wrapping_add(pieces as u32);
        for index in 0..pieces {
            let piece = first.wrapping_add(index as u32);
            if writers.includes(self.rank) {
                self.claim(piece, op)?;
                put(self, self.slot(self.rank, piece), index);
            }
            self.arrive(piece, op.note);
            if readers.includes(self.rank) {
                for other in self.others().filter(|other| writers.includes(*other)) {
                    self.meet(other, piece, op)?;
                }
                take(self, piece, index);
            }
        }
        self.skip_reduced();
        Ok(())
    }
}
