//! Ranks that talk: collective operations over flat typed buffers, between threads and between processes.
//!
//! A *rank* is one of `world_size` threads or processes that run the same program. Each holds a
//! [`Communicator`] and calls the same operations in the same order: all-reduce, reduce-scatter, all-gather,
//! broadcast and their kin. The crate knows nothing of tensors or training; a buffer is a `Vec` or anything that
//! implements [`FlatBuffer`].
//!
//! - **Worlds**: [`threads`] makes one inside a process; [`connect`] joins one of processes over TCP, placed by
//!   a [`WorldConfig`] that [`WorldConfig::from_env`] reads from what torchrun, SLURM, OpenMPI or MPICH say. Ranks of one
//!   host share memory (Linux), others send messages, and one world may mix both. [`Communicator::split`] makes
//!   communicators of some of the ranks.
//! - **Order**: the operations of a communicator run in the order of their issue. [`Communicator::all_reduce_async`] and its
//!   kin return a [`Handle`] at once, and computing goes on; a blocking call with nothing queued before it runs on its
//!   caller's thread, in place.
//! - **Algorithms**: each operation has several ([`Algorithm`]); by default the one is taken that the [`CostModel`], measured
//!   on the running job, says is fastest.
//! - **The same bits everywhere**: a value is reduced in one fixed order and then copied, so every rank gets the
//!   same result in every run.
//! - **Faults**: each message and each slot says which operation it belongs to, so ranks that disagree get
//!   [`CommError::Mismatch`] naming both, not a hang. A rank that dies, or falls silent, is noticed through its
//!   control connection within seconds, and every pending and later operation of every rank returns
//!   [`CommError::PeerLost`] naming it. [`Communicator::abort`] spreads a rank's own error instead, and so do a
//!   mismatch, a time-out, and a buffer that cannot be opened: the other ranks get [`CommError::Aborted`] with the
//!   text. The first failure of a world is the one that counts; there is no repair, only a new world, in which those who are
//!   left of one that has lost ranks, rank 0 among them or not, meet by [`regroup`]: one group of them at most.
//! - **Out of step**: [`Communicator::send_to`], [`Communicator::recv_any`] and [`Communicator::try_recv`] carry messages
//!   that belong to no operation; [`Communicator::control`] carries notices, and the agreement to stop after the same step.
//! - **Strangers**: a [`Secret`] that all ranks know is proved on every connection, by the Noise framework; [`Encryption`] says
//!   which of them are encrypted.
//! - **Cost**: [`Communicator::stats`] tells bytes, busy seconds, and the seconds that callers were blocked;
//!   [`Communicator::recent`] the last operations.
//! - **MPI** (feature `mpi`): `connect_mpi` joins the world that `mpirun` has started, and its communicator's operations
//!   are MPI's own. It needs an MPI library with its headers, and libclang, where it is built. MPI chooses algorithms and
//!   decides about faults: a rank that dies ends the others.
//!
//! - **GPUs** (feature `nccl`): `nccl::communicator` makes a [`Communicator`] that goes by NVIDIA's NCCL. Operations on buffers
//!   that lie on a GPU ([`FlatBuffer::device`]) run there, behind what computes and before what computes next, without the host
//!   waiting. Ranks meet and fail through a [`Communicator`] of this crate. The libraries are loaded when they are first used, so
//!   that building needs no toolkit.
//!
//! The page `docs/collectives.md` has every algorithm with a diagram and its cost, and what was measured.
//!
//! # Names of operations
//!
//! An operation has the name that MPI and NCCL know it by, and what follows the name says how it differs, always in this order:
//!
//! | part of the name | meaning | examples |
//! |---|---|---|
//! | none | blocks until this rank's part is done | `all_reduce`, `broadcast`, `all_gather`, `send` |
//! | `v` | parts of ranks have lengths of their own, as in MPI | `all_gatherv`, `gatherv`, `scatterv`, `all_to_allv` |
//! | `_in_place` | works on this rank's chunk of the caller's buffer, where the plain name returns new memory | `all_gather_in_place`, `reduce_scatter_in_place` |
//! | `_into` | the chunk has a buffer of its own beside the whole, as in PyTorch's `all_gather_into_tensor` | `all_gather_into`, `reduce_scatter_into` |
//! | `_async` | returns a [`Handle`] at once | `all_reduce_async`, `all_gather_into_async` |
//!
//! Operations that only ever work on the caller's buffer (`all_reduce`, `reduce`, `broadcast`) do so without saying it.
//! Several buffers go as one in a [`Coalesced`].
//!
//! # How the modules meet
//!
//! To be read in the order of this file; each module uses only those before it. `dtype`, `operation`, `partition` and
//! `reduce` say what is moved, in which operation, cut how and with which arithmetic; `failure`, `patience` and `recorder`
//! what ranks know of trouble. `shared` has the operations through memory that ranks of a host share, which need no messages;
//! `buffer` is what callers hand over, `sealed` has records of encrypted connections, and a `transport` moves bytes: channels
//! between threads, pipes in shared memory, or TCP. `algorithms` are sequences of sends and receives that know neither; `control`
//! keeps watch over the ranks, `flight` writes down what this one did when the world breaks, with the stacks of its threads, and
//! `mailbox` has messages from any rank. An `engine`
//! puts these together: it numbers an operation, chooses its algorithm and frames its messages with headers that the receiver
//! checks. A `communicator` runs its operations on the caller's thread or on the communication thread, and returns `handle`s.
//! `world` finds out who is there (`config`, `environment`, `rendezvous`), and connects each with each (`connect`).
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
//!             // Starts at once; the buffer comes back when the handle is waited for.
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
mod patience;
mod recorder;

mod shared;
mod simulated;

mod buffer;
mod sealed;
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
mod world;

#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;

pub use algorithms::cost::{CostModel, LinkCost, LinkCosts};
pub use buffer::{Coalesced, DeviceMut, FlatBuffer, SliceMut};
pub use communicator::{Communicator, SharedBuffer};
pub use control::{Control, Notice, Stop};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{BoxError, CommError, Result};
pub use flight::{FlightRecord, MappedFile, PeerRecord, Stacks, ThreadRecord, ThreadStack};
pub use handle::Handle;
#[cfg(feature = "mpi")]
pub use mpi::connect_mpi;
pub use operation::Algorithm;
pub use recorder::{OperationRecord, OperationState};
pub use rehearsal::Rehearsal;
pub use simulated::{Clock, SimulatedLink};
pub use stats::CommStats;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use world::fuzzing;
pub use world::{
    Encryption, Launcher, Newcomers, Regrouped, Secret, WorldConfig, connect, connect_unless,
    connect_with_listener, regroup, regroup_with, threads, threads_over,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
