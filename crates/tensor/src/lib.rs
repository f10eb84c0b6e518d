//! Autograd for training over candle tensors.
//!
//! candle provides storage, devices and element types; its graph is made for inference. This crate adds training on several
//! ranks: an explicit [`Tape`] of nodes over arrays, parameters in buckets, and blocks whose progress a listener follows.
//!
//! - **[`Tape`]**: an op runs forward and pushes a node that can run backward. Gradients accumulate in place. Backward frees
//!   the saved arrays of each node.
//! - **[`Array`]**: memory with a shape, candle's tensor on the CPU or an array of another back end, from `phalanx-array`. An op
//!   checks shapes and records; its arithmetic is one function of the array's [`ArrayBackend`].
//! - **[`Value`]**: the input or output of an op. It holds an array and the destination of its gradient, or a *handle* of a
//!   parameter. Nodes save handles, not weights, so a sharded parameter can be released after forward and gathered again
//!   before backward.
//! - **[`ParamStore`]**: parameters in the order and with the names of the reference state dict, laid out in buckets
//!   ([`ParamBucket`]). One collective moves a bucket, the optimizer runs on its slices, and a shard is a range of it. Running
//!   statistics are [`Buffer`]s, apart from parameters.
//! - **[`Placement`]**, **[`TensorPlan`]**: where layers are cut over ranks, a value says what its numbers are there, and a parameter
//!   which [`Portion`] of it a rank holds.
//! - **[`Precision`]**: activations in bf16 or f16, with parameters, their gradients, statistics and losses in f32.
//! - **[`Block`]**: a named part of a model, the unit of strategies. A [`Listener`] is called when blocks start and end,
//!   forward and backward, and when the gradients of a bucket are complete. Backward can recompute a block instead of saving
//!   its activations ([`Recompute`]).
//! - **[`ops`], [`nn`], [`loss`], [`optim`]**: differentiable operations, layers with PyTorch's names and initial values,
//!   stable losses, and optimizers over flat slices. Every backward is checked against finite differences ([`gradcheck`]).
//! - **[`ProcessGroup`]**: the interface of ops over several ranks ([`ops::all_reduce`], [`ops::all_gather`], …,
//!   synchronised batch norm, the contrastive loss) to a transport.
//! - **[`Key`]**: random numbers as a function of seed, purpose, step and position, so that runs are repeatable and ranks
//!   agree.
//! - **[`Tape::segment`]**: any candle code as one node. With the feature `candle-nn` (default), `CandleModule` runs a module
//!   of candle-nn with its variables.
//!
//! The crate has no ranks, datasets or files other than weights, and it never prints.
//!
//! # Example
//!
//! Training steps of a linear layer:
//!
//! ```
//! use std::sync::Arc;
//! use candle_core::{Device, Tensor};
//! use phalanx_tensor::{BuildOptions, Context, Key, Session, StoreBuilder, Tape, Value, loss, nn, optim};
//! use phalanx_tensor::optim::Optimizer as _;
//!
//! # fn main() -> Result<(), phalanx_tensor::TensorError> {
//! let builder = StoreBuilder::new(BuildOptions { key: Key::new(1), ..Default::default() });
//! let layer = nn::Linear::new(&builder.root().pp("fc").block(), 4, 3)?;
//! let store = builder.build()?;
//!
//! let context = Arc::new(Context::new(1));
//! let images = Tensor::rand(-1.0_f32, 1.0, (8, 4), &Device::Cpu)?;
//! let labels = [0, 1, 2, 0, 1, 2, 0, 1];
//! let mut sgd = optim::Sgd::new(0.9, false, 0.0);
//! let mut losses = Vec::new();
//! for step in 0..20 {
//!     let tape = Tape::recording(Session::training(context.clone(), Key::new(1).step(step)));
//!     let logits = layer.forward(&tape, &Value::constant(images.clone()))?;
//!     let loss = loss::cross_entropy(&tape, &logits, &labels, 0.0, loss::LossDivisor::Batch)?;
//!     losses.push(loss.tensor()?.to_scalar::<f32>()?);
//!     store.zero_grads();
//!     tape.backward(&loss)?;
//!     sgd.step(store.buckets(), 0.1, &context)?;
//! }
//! assert!(losses[19] < losses[0]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "candle-nn")]
mod candle_layer;
#[cfg(feature = "candle-nn")]
pub mod candle_module;
pub mod error;
pub mod gradcheck;
pub mod group;
pub mod init;
pub mod io;
pub mod loss;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod store;
pub mod tape;

#[cfg(feature = "candle-nn")]
pub use candle_layer::{CandleLayer, KnownLayer, LayerOp};
#[cfg(feature = "candle-nn")]
pub use candle_module::CandleModule;
pub use error::{HookResult, Result, TensorError};
pub use group::{BegunResult, GroupTraffic, OutlineGroup, ProcessGroup, Underway};
pub use init::{Fan, Init};
pub use phalanx_array::{
    Array, ArrayBackend, ArrayError, ComputeDevice, Context, DeviceArray, Key, Level, Precision, backend,
    host,
};
pub use store::{
    AdaptedLayer, AdapterRule, BucketEntry, Buffer, BuildOptions, CutUnits, FlatStorage, GradState, LayerCut,
    LoadReport, NamePattern, OwnedGroup, Param, ParamBucket, ParamGroup, ParamLayout, ParamPlace, ParamRules,
    ParamState, ParamStore, PlacedName, Portion, PortionPiece, RateRule, Scope, StagePlace, StoreBuilder,
    TensorPlan, TensorRank, UnreducedGrads, WholeElements,
};
pub use tape::{
    ArithmeticCount, Block, Grads, Graph, GraphInput, GraphNode, GraphPort, KeptWeights, Listener,
    LossFactor, Op, Placement, PlacementRule, PlannedCall, PlannedValue, ReceivedGrad, Recompute, SavedValue,
    SentOut, Session, StageMessages, StagePlan, StageRole, StageRun, StageShare, StageSharing, Tape,
    TensorGroup, TracedCall, TracedPass, TracedValue, Value, ValueTrace, WeightWork,
    take_peak_recorded_bytes,
};

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
