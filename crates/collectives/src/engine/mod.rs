//! Engines: implementations of a communicator's operations.
//!
//! [`Backend`] is this crate's own, with messages and shared memory. Engines of other libraries implement the same [`Engine`], so a
//! communicator does not depend on its engine.
//!
//! Reading order: `memory` is shared memory of a host, `backend` the state of this crate's engine, `traits` the interface of all
//! engines, `operations` its implementation. `direct` has operations through shared memory, `host_memory` and `hosts` set it up,
//! `measure` measures links, `split` makes communicators of some ranks.

mod device;
mod ending;
mod memory;

mod backend;

mod traits;

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod direct;
#[cfg(target_os = "linux")]
mod host_memory;
mod hosts;
pub(crate) mod measure;
mod operations;
mod split;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{agree, of_threads};
pub(crate) use backend::{Backend, Connector, Members, Shared};
pub(crate) use device::{DeviceOperation, DeviceQueue, Facts, Part, same_facts};
pub(crate) use ending::ExitActions;
#[cfg(target_os = "linux")]
pub(crate) use host_memory::{agree, of_threads};
pub(crate) use memory::HostMemory;
#[cfg(feature = "mpi")]
pub(crate) use split::part_id;
pub(crate) use traits::Engine;
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) use traits::{Description, Lifetime, Movement, Reductions, Services};
