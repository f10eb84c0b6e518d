//! Operations by NVIDIA's NCCL (feature `nccl`), on buffers in GPU memory and on host buffers.
//!
//! [`communicator`] makes a [`Communicator`]. Buffers in GPU memory ([`FlatBuffer::device`](crate::FlatBuffer::device)) are used in
//! place, on a separate stream that starts after the computing stream has reached the point of issue.
//! [`Handle::wait`](crate::Handle::wait) makes the computing stream wait in turn, and the host waits for neither. Host buffers go
//! through the GPU, and the host waits: this serves small facts, and tests that hold NCCL to the requirements of this crate's own
//! engine.
//!
//! Ranks find each other through an existing [`Communicator`], whose failure detection they share: when a rank dies, the others
//! abort their work on the GPU, so no stream waits for ever. For that NCCL runs non-blocking, which costs one of NCCL's threads for
//! each operation: some tens of microseconds of host time and no GPU time. A thread watches issued work, so a GPU that hangs is
//! noticed even if no caller waits for it.
//!
//! The libraries are loaded when they are first used: the driver as `libcuda.so.1`, NCCL (2.18 or later) as `libnccl.so.2` or
//! `libnccl.so`.
//!
//! Sums are NCCL's. Their order depends on the machine's links but is the same on every rank.
//! [`ReduceOp::Mean`](crate::ReduceOp::Mean) is `ncclAvg`, which multiplies by `1/n` before it adds. If the number of ranks is not
//! a power of two, it may differ in the last bit from a sum that is divided.

mod bootstrap;
mod calls;
mod channel;
mod device;
mod engine;
mod library;
mod link;
mod memory;
mod network;
mod operations;
mod raw;
mod staging;
mod watch;
mod watchdog;

use std::sync::Arc;

pub use cudarc;
pub use network::{Network, Port, network};

use cudarc::driver::CudaContext;

use crate::communicator::Communicator;
use crate::engine::Lifetime as _;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

/// Returns the number of GPUs of this process; 0 without a driver.
pub fn device_count() -> usize {
    raw::device_count().unwrap_or(0)
}

/// Returns the version of NCCL in its own format: 22703 is 2.27.3.
///
/// # Errors
/// [`CommError::Nccl`] with the file names that were tried.
pub fn version() -> Result<i32> {
    raw::version().map_err(|problem| CommError::Nccl { operation: bootstrap::OPENING, problem })
}

/// Returns a communicator of the same ranks over NCCL between the GPUs of `context`s. Every rank of `world` calls this at the same
/// place, each with its own GPU. The world must outlive it.
///
/// It behaves as the world does, with these differences. NCCL chooses algorithms, so [`Communicator::using`] and
/// [`Communicator::costs`] are errors. Before each operation on host buffers the ranks agree on it through the host. For GPU
/// buffers they agree in the background while the host goes on, so a disagreement is an error of the next operation or of
/// [`Communicator::check`]. Messages between two ranks ([`Communicator::send`]) go through the host: NCCL's wait for the receiver,
/// and those of a communicator must not.
///
/// # Errors
/// [`CommError::Nccl`] on every rank if one has no library or no usable GPU; otherwise the error of the world.
pub fn communicator(world: &Communicator, context: Arc<CudaContext>) -> Result<Communicator> {
    bootstrap::check(|own| world.all_gatherv(own))?;
    let host = world.backend_twin(bootstrap::OPENING)?;
    let ending = world.outlives(host.ending());
    let engine = engine::NcclEngine::open(host, context)?;
    Communicator::start(Box::new(engine), world.local_rank(), Algorithm::Auto, ending)
        .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
}
