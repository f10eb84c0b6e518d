//! Memory that ranks of one host share, and operations that go through it without messages.
//!
//! A message between two processes is copied into the system and out again, and a ring passes every byte on several
//! times. Here every rank has a slot in memory that all map: it puts in what the others reduce, reduces its own part
//! straight from the others' slots, and they copy the result from its slot. Ranks tell each other how far they are by
//! counters in the same memory; who waits looks for a while and then sleeps on the counter.
//!
//! The memory has no name in any file system: processes open it through the descriptor of the rank that made it, so
//! nothing is left behind however a rank dies.

mod board;
mod memory;
mod setup;

pub(crate) use board::{Board, BoardError, Deadline};
pub(crate) use setup::{agree, of_threads};
