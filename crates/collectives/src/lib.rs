//! Collective operations over flat typed buffers, between threads and between processes.
//!
//! A *rank* is one of `world_size` threads or processes that run the same program. Each holds a [`Communicator`] and calls the same
//! operations in the same order: all-reduce, reduce-scatter, all-gather, broadcast and related ones. The crate does not depend on
//! tensors or training. A buffer is a `Vec` or any type that implements [`FlatBuffer`].
//!
//! - **Worlds**: [`threads`] makes a world inside a process. [`connect`] joins a world of processes over TCP with a [`WorldConfig`],
//!   which [`WorldConfig::from_env`] reads from the variables of torchrun, SLURM, OpenMPI or MPICH. Ranks of one host share memory
//!   (Linux), others send messages, and one world may mix both. [`Communicator::split`] makes communicators of some ranks.
//! - **Order**: operations of a communicator run in the order of their issue. [`Communicator::all_reduce_async`] and related
//!   functions return a [`Handle`] at once, while the program goes on. A blocking call with an empty queue runs on its caller's
//!   thread, in place.
//! - **Algorithms**: each operation has several ([`Algorithm`]). By default the [`CostModel`], measured on the running job, chooses
//!   the fastest.
//! - **Reproducible bits**: a value is reduced in one fixed order and then copied, so every rank gets the same result in every run.
//! - **Faults**: each message and slot names its operation, so ranks that disagree get [`CommError::Mismatch`] with both operations,
//!   not a hang. If a rank dies or falls silent, the control plane notices within seconds, and every pending and later operation of
//!   every rank returns [`CommError::PeerLost`] with its number. [`Communicator::abort`] spreads a rank's own error, and so do a
//!   mismatch, a timeout, and a buffer that cannot be opened: the other ranks get [`CommError::Aborted`] with the text. The first
//!   failure of a world counts, and a broken world stays broken. Its surviving ranks can form a new one by [`rejoin`]; of several
//!   groups that cannot reach each other at most one does.
//! - **Messages out of step**: [`Communicator::send_to`], [`Communicator::recv_any`] and [`Communicator::try_recv`] carry messages
//!   that belong to no operation. [`Communicator::control`] carries notices, and the agreement to stop after the same step.
//! - **Security**: every connection proves by the Noise framework that both ends know the world's [`Secret`]. [`Encryption`] chooses
//!   the encrypted connections.
//! - **Costs**: [`Communicator::stats`] returns bytes, busy seconds, and the seconds that callers were blocked;
//!   [`Communicator::recent`] the last operations.
//! - **MPI** (feature `mpi`): `connect_mpi` joins the world that `mpirun` started; operations are MPI's own. Building needs an MPI
//!   library with its headers, and libclang. MPI chooses algorithms and handles faults: if a rank dies, the others end.
//! - **GPUs** (feature `nccl`): `nccl::communicator` makes a [`Communicator`] over NVIDIA's NCCL. Operations on buffers in GPU memory
//!   ([`FlatBuffer::device`]) run there, ordered with the computing stream, and the host does not wait. Ranks find each other and
//!   notice failures through a [`Communicator`] of this crate. The libraries are loaded at first use, so building needs no toolkit.
//!
//! The page `docs/collectives.md` has every algorithm with a diagram and its cost, and measurements.
//!
//! # Names of operations
//!
//! An operation has its name in MPI and NCCL. Suffixes tell how it differs, always in this order:
//!
//! | suffix | meaning | examples |
//! |---|---|---|
//! | none | blocks until this rank's part is done | `all_reduce`, `broadcast`, `all_gather`, `send` |
//! | `v` | parts of ranks may have different lengths, as in MPI | `all_gatherv`, `gatherv`, `scatterv`, `all_to_allv` |
//! | `_in_place` | works on this rank's chunk of the caller's buffer, where the plain name returns new memory | `all_gather_in_place`, `reduce_scatter_in_place` |
//! | `_into` | the chunk has a separate buffer, as in PyTorch's `all_gather_into_tensor` | `all_gather_into`, `reduce_scatter_into` |
//! | `_async` | returns a [`Handle`] at once | `all_reduce_async`, `all_gather_into_async` |
//!
//! Operations that always work on the caller's buffer (`all_reduce`, `reduce`, `broadcast`) have no such suffix. A [`Coalesced`]
//! combines several buffers.
//!
//! # Modules
//!
//! Read them in the order of this file; each module uses only those before it.
//!
//! - `dtype`, `operation`, `partition`, `reduce`: element types, tags, chunks and arithmetic.
//! - `failure`, `recorder`, `waiting`: state of failures and waits.
//! - `shared`: operations through memory of a host, without messages. `simulated`: slower networks.
//! - `buffer`: the callers' buffers. `encrypted`: records of encrypted connections. `transport`: channels between threads, pipes in
//!   shared memory, and TCP.
//! - `algorithms`: sequences of sends and receives, independent of both. `rehearsal`: their predicted duration.
//! - `control`: the control plane. `flight`: the record of a rank whose world broke. `mailbox`: messages from any rank.
//! - `engine`: numbers an operation, chooses its algorithm, and frames its messages with headers that the receiver checks.
//! - `communicator`: runs operations on the caller's thread or the communication thread, and returns a `handle`.
//! - `security`: the handshake. `config`: options of a rank. `rendezvous`: registration and connections. `world`: all of it together.
//!
//! # Example
//!
//! ```
//! use phalanx_collectives::{ReduceOp, threads};
//!
//! # fn main() -> Result<(), phalanx_collectives::CommError> {
//! let ranks: Vec<_> = threads(3)?
//!     .into_iter()
//!     .map(|comm| {
//!         std::thread::spawn(move || {
//!             // Starts at once; waiting for the handle returns the buffer.
//!             let handle = comm.all_reduce_async(vec![comm.rank() as f32; 4], ReduceOp::Sum);
//!             let sum = handle.wait()?;
//!             let mut root = [comm.rank() as i64];
//!             comm.broadcast(&mut root, 2)?;
//!             Ok::<_, phalanx_collectives::CommError>((sum, root))
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     let (sum, root) = rank.join().expect("no panic")?;
//!     assert_eq!(sum, [3.0; 4]);
//!     assert_eq!(root, [2]);
//! }
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod error;

mod dtype;
mod operation;
mod partition;
mod reduce;

mod failure;
mod recorder;
mod waiting;

mod shared;
mod simulated;

mod buffer;
mod encrypted;
mod transport;

mod algorithms;
mod rehearsal;

mod control;
mod flight;
mod mailbox;

mod engine;

mod handle;
mod stats;

mod communicator;

mod security;

mod config;
mod rendezvous;
mod world;

#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;

pub use algorithms::cost::{CostModel, LinkCost, LinkCosts};
pub use buffer::{Coalesced, DeviceMut, FlatBuffer, SliceMut};
pub use communicator::{Communicator, SharedBuffer};
pub use config::{Timeouts, TransportOptions, WorldConfig};
pub use control::{Control, Notice, Stop};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{BoxError, CommError, Result};
pub use flight::{
    FlightRecord, MappedFile, PeerRecord, Stacks, ThreadRecord, ThreadStack, write_flight_records,
};
pub use handle::Handle;
#[cfg(feature = "mpi")]
pub use mpi::connect_mpi;
pub use operation::Algorithm;
pub use phalanx_environment::{EnvironmentError, Launcher, MeetingPoint, RankInfo};
pub use recorder::{OperationRecord, OperationState};
pub use rehearsal::Rehearsal;
pub use security::{Credentials, Encryption, Secret};
pub use simulated::{Clock, SimulatedLink};
pub use stats::CommStats;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use world::fuzzing;
pub use world::{
    Newcomers, RebuiltWorld, connect, connect_unless, connect_watched, connect_with_listener, rejoin,
    rejoin_with, threads, threads_over,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
