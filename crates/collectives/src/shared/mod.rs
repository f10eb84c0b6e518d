//! Memory that ranks of one host share, and operations that go through it without messages.
//!
//! A message between two processes is copied into the system and out again, and a ring passes every byte on several
//! times. Here every rank has a slot in memory that all map: it puts in what the others reduce, reduces its own part
//! straight from the others' slots, and they copy the result from its slot. Ranks tell each other how far they are by
//! counters in the same memory.
//!
//! The memory has no name in any file system: processes open it through the descriptor of the rank that made it, so
//! nothing is left behind however a rank dies.
//!
//! To be read in this order: `memory` is the memory itself, `wait` is waiting for a word in it; `slot_exchange` has the
//! slots and the rule that keeps readers and writers apart, `operations` the operations through them, `region` buffers
//! that lie in the memory themselves, `cross_memory` operations that read others' buffers where they lie, `ring` bytes
//! from one rank to one other. How ranks come to share is in `engine/host_memory.rs`.

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod cross_memory;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod operations;
#[cfg(target_os = "linux")]
mod region;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod slot_exchange;
#[cfg(target_os = "linux")]
mod wait;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::Region;
#[cfg(target_os = "linux")]
pub(crate) use region::Region;
#[cfg(target_os = "linux")]
pub(crate) use {
    cross_memory::{CrossMemory, expose},
    memory::SharedMemory,
    ring::Ring,
    slot_exchange::{Note, SlotError, SlotExchange, Visit},
    wait::looks,
};
