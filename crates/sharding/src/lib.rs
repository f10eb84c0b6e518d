//! Turns a single-device model into a distributed one, from outside.
//!
//! - **[`ParallelStrategy`]** is the interface of all strategies: gradients go in, updated parameters come out. The strategy decides
//!   when ranks wait and what they send. A [`StepGuard`] is its protocol as a type. [`DataParallel`] is the bulk-synchronous strategy.
//! - **[`Strategy`]** is a row of a table ([`STRATEGIES`]) that says which part of the state each rank holds: `dp`, `ddp`, `zero1`,
//!   `zero2`, `fsdp` (also called `zero3`) and `hsdp`. [`Options`] has the algorithm of collectives and the codec of gradients.
//! - **Asynchronous strategies** are rows, too, and [`parallelize`] makes any row: [`ParameterServer`] (`ps-bsp`, `ps-ssp`, `ps-asp`),
//!   [`LocalSgd`] (`local-sgd`, `post-local-sgd`, `diloco`) and [`Gossip`] (`d-psgd`, `ad-psgd`, `sgp`), with [`SyncOptions`].
//!   [`synchrony`] has their clocks, without threads and tensors. Servers call the optimizer, too ([`SharedUpdate`]).
//! - **[`GradCodec`]** sums gradients over ranks in fewer bytes (crate `phalanx-codecs`). Its state is part of a checkpoint.
//! - **[`MemoryPlan`]** predicts the memory and traffic of a strategy.
//! - **[`ProcessMesh`]** arranges ranks along named axes, with a communicator for each; [`Degrees`] say how many ranks lie along each
//!   axis.
//!
//! The model knows none of this: a strategy listens to the tape. [`DataParallel`] starts the reduction of a
//! [`phalanx_tensor::ParamBucket`] when its gradients are complete, while backward goes on with earlier blocks. Where parameters are
//! sharded, it gathers the next block's while this one computes.
//!
//! # Example
//!
//! Two ranks as threads, each with half of the batch, get the gradients of the whole:
//!
//! ```
//! use std::sync::Arc;
//! use candle_core::{Device, Tensor};
//! use phalanx_collectives::threads;
//! use phalanx_sharding::{DataParallel, Strategy};
//! use phalanx_tensor::optim::{Optimizer as _, Sgd};
//! use phalanx_tensor::{BuildOptions, Context, Key, Session, StoreBuilder, Tape, Value, loss, nn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let ranks: Vec<_> = threads(2)?.into_iter().map(|comm| std::thread::spawn(move || {
//!     let builder = StoreBuilder::new(BuildOptions::default());
//!     let layer = nn::Linear::new(&builder.root().pp("fc").block(), 3, 2)?;
//!     let store = builder.build()?;
//!     let rank = comm.rank();
//!     let parallel = DataParallel::new(&store, comm, Strategy::named("ddp")?)?;
//!
//!     let context = Arc::new(Context::new(1));
//!     let mut session = Session::training(context.clone(), Key::new(0));
//!     session.listener = Some(parallel.clone());
//!     let tape = Tape::recording(session);
//!     let sample = Tensor::new(&[[1.0_f32, 2.0, rank as f32]], &Device::Cpu)?;
//!     let logits = layer.forward(&tape, &Value::constant(sample))?;
//!     // Divided by the global batch of two, so that the sum over ranks is the mean.
//!     let loss = loss::cross_entropy(&tape, &logits, &[rank as u32], 0.0, loss::LossDivisor::Count(2))?;
//!     let step = parallel.begin_step()?;
//!     tape.backward(&loss)?;
//!     step.finish(|params| Sgd::new(0.0, false, 0.0).step(params, 0.1, &context))?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(store.param("fc.weight")?.tensor()?.to_vec2::<f32>()?)
//! })).collect();
//! let weights: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<_, _>>()?;
//! assert_eq!(weights[0], weights[1]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod asynchronous;
mod background;
mod consensus;
mod data_parallel;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod mesh;
mod options;
mod parallel;
mod parallelize;
pub mod pipeline;
mod predict;
mod reduction_math;
#[cfg(any(test, fuzzing))]
mod rehearsed;
mod strategy;
mod strategy_mesh;
mod virtual_ranks;

pub use asynchronous::gossip::Gossip;
pub use asynchronous::local_sgd::LocalSgd;
pub use asynchronous::parameter_server::ParameterServer;
pub use asynchronous::synchrony::{self, CatchUp, SyncOptions, Topology};
pub use data_parallel::DataParallel;
pub use error::{Result, ShardingError};
pub use mesh::process_group::{RankGroup, single_rank_group};
pub use mesh::{AXES, AxisKind, Degree, Degrees, MeshLayout, ProcessMesh};
pub use options::{Options, Overlap};
pub use parallel::{
    LocalModel, Observed, OptimizerUpdate, OwnState, ParallelStrategy, PlainUpdate, RankCollectives,
    ReducedStep, Residency, Resumable, ShardRole, SharedUpdate, StateBytes, StepGuard, StepReports,
    StepToken, SyncStats,
};
pub use parallelize::parallelize;
pub use phalanx_codecs::{
    Bf16, Bucket, CodecBytes, CodecError, CodecKind, CodecScope, CodecSettings, CodecState, CodecStream,
    CodecVerdict, CodecWhen, DeviceSlice, FlatSlice, GradCodec, MatrixRange, Peers, PushCodec, SumGroup,
    SumPlacement, WeightRounding,
};
pub use predict::plan::{self, MemoryPlan, Workload};
pub use predict::timing::{ClusterModel, ComputeTimes, StepTime};
pub use strategy::{
    AlongAxis, DataAxes, GossipKind, Meeting, Partition, Ranks, STRATEGIES, ServerPace, StatePartition,
    Strategy, Synchrony,
};
pub use virtual_ranks::{SumTree, VirtualRankGroup, VirtualRankTurns, VirtualRanks};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
