//! The configuration of a training: typed sections, composed from presets, files and options.
//!
//! A configuration starts from the defaults of all keys, is overridden by a preset or a file with
//! everything that it `extends` (the base first), and then by options of the command line. Every value remembers
//! where it was written, so that every complaint can say so.
//!
//! Most keys are those of every run. What `model.kind` chooses, a task, has keys of its own in `[model]`, typed by its
//! [`Settings`], which [`settings!`] declares; which tasks and presets there are a [`Catalogue`] says. A training of several
//! networks has keys for each of them where they are to differ: `[critic.optim]`.
//!
//! This crate reads and checks values, and starts nothing: a program that only plans or shows a configuration needs no training loop.
//!
//! # Example
//!
//! A preset, and an option that overrides one of its values:
//!
//! ```
//! use std::sync::Arc;
//! use phalanx_config::Catalogue;
//!
//! let presets = vec![("short".to_owned(), "[train]\nsteps = 10\nglobal_batch = 8\n".to_owned())];
//! let catalogue = Arc::new(Catalogue { program: "train".to_owned(), presets, ..Default::default() });
//! let resolved = catalogue.resolve(Some("short"), &["train.global_batch=4".to_owned()])?;
//! assert_eq!((resolved.config.train.steps, resolved.config.train.global_batch), (10, 4));
//! println!("train.steps is from {:?}", resolved.origin("train.steps"));
//! # Ok::<(), phalanx_config::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

mod suggest;

mod parallel_degree;

mod goal;
mod key_types;
mod keys;
mod section;

mod settings;

mod origin;

mod chaos;
mod codec;
mod elastic;
mod layer;
mod link;
mod logical;
mod lora;
mod networks;
mod parallel;
mod param_rules;
mod pipeline;
mod render;
mod section_checks;
mod selection;
mod synchrony;
mod tensor;
mod trace;
mod transport;
mod validate;

mod catalogue;
mod resolved;

pub use toml::Value;

pub use catalogue::{Catalogue, TaskSchema};
pub use chaos::{BitFlip, SlowRank, Stall, StallPlace};
pub use goal::Goal;
pub use keys::{
    Bind, ChaosConfig, CheckpointConfig, CodecConfig, CommConfig, Config, DataConfig, DataKind, DeviceKind,
    ElasticConfig, EvalConfig, LogConfig, LoraConfig, ModelConfig, Offload, OnDamage, OptimConfig, OptimKind,
    ParallelConfig, QualityConfig, SampleConfig, ScheduleConfig, ScheduleKind, SecretPolicy, SyncConfig,
    TrainConfig, Transport, WatchConfig, WeightCodec,
};
pub use origin::{ConfigError, Origin};
pub use parallel_degree::ParallelDegree;
pub use render::{Detail, diff};
pub use resolved::Resolved;
pub use section::{KeyDoc, KeyType, Mismatch};
pub use selection::BestMeasure;
pub use settings::{Settings, TaskSettings};
pub use suggest::nearest;
pub use validate::Relations;

/// Converts the MiB of a limit to bytes; 0 is unlimited.
pub fn mib(count: usize) -> usize {
    if count == 0 { usize::MAX } else { count.saturating_mul(1 << 20) }
}

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
