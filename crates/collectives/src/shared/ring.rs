//! A ring of bytes in shared memory: one rank writes, one reads.

use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::SharedMemory;
use super::wait;

/// Bytes of the ring; a power of two, so that counters may wrap. Two pieces of an algorithm fit.
const CAPACITY: usize = 512 << 10;

/// Bytes that are published at a time, so that the reader copies while the writer does.
const STRIDE: usize = 32 << 10;

/// Counters lie in cache lines of their own.
const WRITTEN: usize = 0;
const READER_SLEEPS: usize = 4;
const WRITER_AT: usize = 8;
const FINISHED: usize = 12;
const READ: usize = 128;
const WRITER_SLEEPS: usize = 132;
const READER_AT: usize = 136;
const ABANDONED: usize = 140;
const DATA: usize = 256;

/// One end of a ring. The writer calls [`Ring::write`] and related functions, the reader [`Ring::read`]; never both.
#[derive(Clone)]
pub(crate) struct Ring {
    memory: SharedMemory,
    at: usize,
    looks: u32,
}

impl Ring {
    /// Bytes of a ring in the memory.
    pub(crate) const SIZE: usize = DATA + CAPACITY;

    pub(crate) fn new(memory: SharedMemory, at: usize, looks: u32) -> Self {
        Self { memory, at, looks }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        self.memory.word(self.at + at)
    }

    /// Returns the bytes written and not yet read.
    fn filled(&self) -> usize {
        let (written, read) =
            (self.word(WRITTEN).load(Ordering::Acquire), self.word(READ).load(Ordering::Acquire));
        written.wrapping_sub(read) as usize
    }

    /// Returns the part of the ring from a counter's position up to its end.
    fn straight(counter: u32, len: usize) -> (usize, usize) {
        let at = counter as usize % CAPACITY;
        (DATA + at, len.min(CAPACITY - at))
    }

    /// Writes the bytes that fit; returns their number.
    pub(crate) fn write(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let room = CAPACITY - self.filled();
            if room == 0 {
                break;
            }
            let counter = self.word(WRITTEN).load(Ordering::Relaxed);
            let (at, len) = Self::straight(counter, room.min(bytes.len() - done).min(STRIDE));
            self.memory.copy_in(self.at + at, &bytes[done..done + len]);
            done += len;
            self.word(WRITER_AT).store(wait::current_cpu(), Ordering::Relaxed);
            wait::publish(self.word(WRITTEN), counter.wrapping_add(len as u32), self.word(READER_SLEEPS));
        }
        done
    }

    /// Reads available bytes; returns their number.
    pub(crate) fn read(&self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let filled = self.filled();
            if filled == 0 {
                break;
            }
            let counter = self.word(READ).load(Ordering::Relaxed);
            let (at, len) = Self::straight(counter, filled.min(into.len() - done).min(STRIDE));
            self.memory.copy_out(self.at + at, &mut into[done..done + len]);
            done += len;
            self.word(READER_AT).store(wait::current_cpu(), Ordering::Relaxed);
            wait::publish(self.word(READ), counter.wrapping_add(len as u32), self.word(WRITER_SLEEPS));
        }
        done
    }

    /// Polls for room without sleeping.
    pub(crate) fn look_for_room(&self) -> bool {
        let written = self.word(WRITTEN).load(Ordering::Relaxed);
        let room = |read: u32| (written.wrapping_sub(read) as usize) < CAPACITY;
        wait::look(self.word(READ), room, self.looks, self.word(READER_AT))
    }

    /// Waits for room, for a limited time.
    pub(crate) fn wait_for_room(&self) -> bool {
        let written = self.word(WRITTEN).load(Ordering::Relaxed);
        let room = |read: u32| (written.wrapping_sub(read) as usize) < CAPACITY;
        wait::nap(self.word(READ), room, self.word(WRITER_SLEEPS))
    }

    /// Waits for bytes, for a limited time.
    pub(crate) fn wait_for_bytes(&self) -> bool {
        let read = self.word(READ).load(Ordering::Relaxed);
        let bytes = |written: u32| written != read;
        wait::look(self.word(WRITTEN), bytes, self.looks, self.word(WRITER_AT))
            || wait::nap(self.word(WRITTEN), bytes, self.word(READER_SLEEPS))
    }

    /// Marks that the writer leaves.
    pub(crate) fn finish(&self) {
        self.word(FINISHED).store(1, Ordering::SeqCst);
        wait::wake(self.word(WRITTEN));
    }

    /// True if the writer has left and everything is read.
    pub(crate) fn is_finished(&self) -> bool {
        self.word(FINISHED).load(Ordering::SeqCst) != 0 && self.filled() == 0
    }

    /// Marks that the reader leaves.
    pub(crate) fn abandon(&self) {
        self.word(ABANDONED).store(1, Ordering::SeqCst);
        wait::wake(self.word(READ));
    }

    /// True if the reader has left.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.word(ABANDONED).load(Ordering::SeqCst) != 0
    }
}
