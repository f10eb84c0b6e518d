//! Operations by NVIDIA's NCCL (feature `nccl`), on buffers in the memory of GPUs and on buffers of the host.
//!
//! [`communicator`] makes a [`Communicator`]. Buffers that lie on the GPU ([`FlatBuffer::device`](crate::FlatBuffer::device)) are
//! worked on where they are, on a stream of their own that begins after the computing stream has come to where the operation was
//! issued; [`Handle::wait`](crate::Handle::wait) makes the computing stream wait in turn, and the host waits for neither. Buffers
//! of the host go through the GPU, and the host waits: for small facts, and so that NCCL is held to what this crate's own engine
//! is held to.
//!
//! Ranks find each other through a [`Communicator`] that they have, and its watch is theirs too: when a rank dies, what the
//! others have on the GPU is given up, so that no stream waits for ever. For that, NCCL is asked not to block, which costs a
//! thread of NCCL's own an operation, some tens of microseconds of the host's time and none of the GPU's. A thread looks after
//! what the GPU was given, so that one that hangs is noticed although nobody waits for it on the host.
//!
//! The libraries are loaded when they are first used: the driver as `libcuda.so.1`, NCCL (2.18 or later) as `libnccl.so.2` or
//! `libnccl.so`.
//!
//! Results: sums are NCCL's, in an order that depends on the machine's links, though the same on every rank.
//! [`ReduceOp::Mean`](crate::ReduceOp::Mean) is `ncclAvg`, which multiplies by `1/n` before it adds; with a number of ranks
//! that is no power of two it may differ in the last bit from a sum that is divided.

mod bootstrap;
mod calls;
mod channel;
mod device;
mod engine;
mod library;
mod link;
mod memory;
mod operations;
mod raw;
mod staging;
mod watch;
mod watchdog;

use std::sync::Arc;

pub use cudarc;

use cudarc::driver::CudaContext;

use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

/// How many GPUs this process can use; none without a driver.
pub fn device_count() -> usize {
    raw::device_count().unwrap_or(0)
}

/// The version of NCCL, as it writes it: 22703 is 2.27.3.
///
/// # Errors
/// [`CommError::Nccl`] with the names under which it was looked for.
pub fn version() -> Result<i32> {
    raw::version().map_err(|problem| CommError::Nccl { operation: bootstrap::OPENING, problem })
}

/// A communicator of the same ranks whose operations go by NCCL between the GPUs of `context`s. Every rank of `world` calls
/// this at the same place, each with a GPU of its own. The world must outlive it.
///
/// It behaves as the world does, with these differences. NCCL chooses the ways of the bytes, so that
/// [`Communicator::using`] and [`Communicator::costs`] are errors. Before each operation on buffers of the host the ranks agree
/// on it through the host; on buffers of the GPU they do beside it, and the host goes on: so a disagreement is an error
/// here too, of the next operation or of [`Communicator::check`]. Messages between two ranks ([`Communicator::send`]) go through
/// the host altogether: NCCL's wait until the receiver has come, and those of a communicator may not.
///
/// # Errors
/// [`CommError::Nccl`] on every rank if one has no library or no usable GPU; otherwise that of the world.
pub fn communicator(world: &Communicator, context: Arc<CudaContext>) -> Result<Communicator> {
    bootstrap::check(|own| world.all_gatherv(own))?;
    let host = world.backend_twin(bootstrap::OPENING)?;
    let ending = host.ending();
    let engine = engine::NcclEngine::open(host, context)?;
    Communicator::start(Box::new(engine), world.local_rank(), Algorithm::Auto, ending)
        .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
}
