//! Memory that ranks of one host share, and operations through it without messages.
//!
//! A message between two processes is copied into the system and out again, and a ring passes every byte on several times. Here
//! every rank has a slot in memory that all map. It writes values that the others reduce, reduces its own part directly from the
//! other slots, and they copy the result from its slot. Counters in the same memory show each rank's progress.
//!
//! The memory has no name in any file system: processes open it through the descriptor of the rank that created it, so nothing is
//! left behind if ranks die.
//!
//! Reading order: `memory` is the memory itself, `wait` waits for a word in it, `cross_memory` reads buffers of other ranks.
//! `slot_exchange` has the slots and the rule that separates readers from writers, `operations` the operations through them,
//! `exposed` those that read other buffers in place, `region` buffers in the memory itself, and `ring` bytes from one rank to
//! another. `engine/host_memory.rs` sets it up.

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod cross_memory;
#[cfg(target_os = "linux")]
mod exposed;
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
    slot_exchange::{Note, SlotError, SlotExchange, SlotOp},
    wait::looks,
};
