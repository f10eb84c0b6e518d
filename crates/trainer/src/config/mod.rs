//! The configuration: typed sections, composed from presets, files and options.
//!
//! A configuration starts from the defaults of all keys, is overridden by a preset or a file with
//! everything that it `extends` (the base first), and then by options of the command line. Every value remembers
//! where it was written, so that every complaint can say so.
//!
//! Most keys are those of every run. What `model.kind` chooses, a task, has keys of its own in `[model]`, typed by its
//! [`Settings`]; which tasks and presets there are a [`Catalogue`] says. A training of several networks has keys for each of
//! them where they are to differ: `[critic.optim]`.

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
pub use section::{KeyDoc, KeyType, Mismatch};
pub use selection::BestMeasure;
pub use settings::{Settings, TaskSettings};
pub use suggest::nearest;
pub use validate::Relations;

use std::collections::BTreeMap;
use std::sync::Arc;

use layer::Assignment;

/// Converts MiB to bytes; 0 is unlimited.
pub(crate) fn mib(count: usize) -> usize {
    if count == 0 { usize::MAX } else { count.saturating_mul(1 << 20) }
}

/// A configuration with the history of its values.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// The preset's name, or the file's without its folder and ending.
    pub name: String,
    /// The description in the preset or file.
    pub description: Option<String>,
    origins: BTreeMap<String, Origin>,
    catalogue: Arc<Catalogue>,
    assignments: Vec<Assignment>,
    /// True if the configuration is that of a run's folder.
    of_run: bool,
}

impl Resolved {
    /// Where the value of `key` was written.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// The tasks and presets that it was composed from.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Checks the relations between values, such as a batch that must not be smaller than the number of ranks.
    ///
    /// # Errors
    /// Every relation that does not hold, with its numbers.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.catalogue.check(&self.config, &|key| self.origin(key), true)
    }

    /// Checks the relations between values for what reads no images, such as planning: `data.path` may be empty.
    ///
    /// # Errors
    /// Every other relation that does not hold, with its numbers.
    pub fn validate_without_images(&self) -> Result<(), ConfigError> {
        self.catalogue.check(&self.config, &|key| self.origin(key), false)
    }

    /// Sets a key on behalf of an option of the command line, `section.key=value`.
    ///
    /// # Errors
    /// If there is no such key, or the value is of another type.
    pub fn set(&mut self, option: &str, assignment: &str) -> Result<(), ConfigError> {
        self.apply(layer::parse_option(option, assignment)?)
    }

    /// Sets a key to a TOML value on behalf of an option of the command line.
    ///
    /// # Errors
    /// If there is no such key, or the value is of another type.
    pub fn set_value(&mut self, option: &str, key: &str, value: Value) -> Result<(), ConfigError> {
        self.apply(Assignment::of_option(option, key, value))
    }

    /// Composes anew with one assignment more, which may choose another task.
    fn apply(&mut self, assignment: Assignment) -> Result<(), ConfigError> {
        self.assignments.push(assignment);
        let (config, origins, problems) = self.catalogue.compose(&self.assignments, self.of_run);
        if let Err(error) = ConfigError::from_all(problems) {
            self.assignments.pop();
            return Err(error);
        }
        (self.config, self.origins) = (config, origins);
        Ok(())
    }
}
