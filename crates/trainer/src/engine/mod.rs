//! Training itself: one rank's loop, and what it is made of.
//!
//! [`train`] runs a whole rank. It asks a [`Task`] for losses, `Peers` to sum gradients and numbers over the ranks,
//! and `Learner` to change and save what is learnt, and tells an [`Observer`] how it goes. After every step all
//! ranks know the same sums (the loss, the measures, whether anybody was asked to stop), so they take the same
//! decisions without further words: stop after the same step, or fail at the same broken loss.
//!
//! A run goes on from its newest checkpoint bit for bit: parameters, buffers, optimizer and averages come from
//! files; random numbers and the order of images are functions of seed, epoch and step.

mod account;
mod codec_state;
mod data;
mod error;
mod evaluate;
mod feed;
mod infer;
mod learner;
mod memory;
mod meter;
mod observer;
mod optimize;
mod parts;
mod peers;
mod plan;
mod precision;
mod replicas;
mod samples;
mod saver;
mod task;
mod tasks;
mod train;
mod world;

pub use error::TrainError;
pub use infer::{describe, evaluate_run, evaluate_weights, sample_run};
pub use memory::{ModelPlan, plan_memory};
pub use observer::{Event, Observer, Silent, Started, StepReport};
pub use plan::Plan;
pub use replicas::{ReplicaFailure, train_replicas};
pub use task::{Batch, Outcome, Task};
pub(crate) use train::newest_checkpoint;
pub use train::train;
pub use world::{World, in_one_process, launcher_world};
