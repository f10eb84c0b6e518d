//! Operations by NVIDIA's NCCL (feature `nccl`): on buffers in the memory of GPUs, and as a communicator's.
//!
//! - [`DeviceCommunicator`] moves buffers that are on a GPU. It has a stream of its own, which waits for the stream that
//!   computes; each operation gives a [`DeviceHandle`] that the computing stream waits for in turn. The host waits for neither.
//! - [`communicator`] makes a [`Communicator`] whose buffers are on the host and go through the GPU: it is there so that NCCL
//!   is held to what this crate's own engine is held to, not for speed.
//!
//! Ranks find each other through a [`Communicator`] that they have, and its watch is theirs too: when a rank dies, what the
//! others have on the GPU is given up, so that no stream waits for ever. For that, NCCL is asked not to block, which costs a
//! thread of NCCL's own an operation, some tens of microseconds of the host's time and none of the GPU's.
//!
//! The libraries are loaded when they are first used: the driver as `libcuda.so`, NCCL (2.18 or later) as `libnccl.so`.
//! Packages that bring only `libnccl.so.2` need a link of that name.
//!
//! Results: sums are NCCL's, in an order that depends on the machine's links, though the same on every rank.
//! [`ReduceOp::Mean`](crate::ReduceOp::Mean) is `ncclAvg`, which multiplies by `1/n` before it adds; with a number of ranks
//! that is no power of two it may differ in the last bit from a sum that is divided.

mod bootstrap;
mod calls;
mod channel;
mod device;
mod engine;
mod handle;
mod memory;
mod movement;
mod operations;
mod raw;
mod staging;
mod watch;

use std::sync::Arc;

pub use cudarc;
pub use device::DeviceCommunicator;
pub use handle::DeviceHandle;
pub use memory::{DeviceElement, DeviceSource, DeviceTarget};

use cudarc::driver::CudaContext;

use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

/// How many GPUs this process can use; none without a driver.
pub fn device_count() -> usize {
    raw::device_count().unwrap_or(0)
}

/// A communicator of the same ranks whose operations go by NCCL, its buffers through the memory of this rank's GPU. Every
/// rank of `world` calls this at the same place, each with a GPU of its own. The world must outlive it.
///
/// It behaves as the world does, with these differences. NCCL chooses the ways of the bytes, so that
/// [`Communicator::using`] and [`Communicator::costs`] are errors. Before each operation the ranks agree on it through the
/// host, so that a disagreement is an error here too. Messages between two ranks ([`Communicator::send`]) go through the host
/// altogether: NCCL's wait until the receiver has come, and those of a communicator may not. For them there is
/// [`DeviceCommunicator::send`].
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
