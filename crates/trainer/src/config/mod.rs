//! The configuration: typed sections, composed from presets, files and options.
//!
//! A configuration starts from the defaults in [`keys`](self), is overridden by a preset or a file with
//! everything that it `extends` (the base first), and then by options of the command line. Every value remembers
//! where it was written, so that every complaint can say so.

mod keys;
mod layer;
mod networks;
mod origin;
pub mod presets;
mod render;
mod section;
mod validate;

pub use keys::{
    CheckpointConfig, Config, DataConfig, DataKind, EvalConfig, FilterKind, LogConfig, ModelConfig,
    ModelKind, NormaliseKind, OptimConfig, OptimKind, OverlapKind, PrecisionKind, SampleConfig,
    ScheduleConfig, ScheduleKind, StrategyKind, TailKind, TrainConfig,
};
pub use origin::{ConfigError, Origin, nearest};
pub use render::{Detail, diff};
pub use section::{KeyDoc, KeyType, Mismatch};

use std::collections::BTreeMap;

use layer::Assignment;

/// Bytes of so many MiB; 0 is no bound.
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
    /// What the preset or file says it is.
    pub description: Option<String>,
    origins: BTreeMap<String, Origin>,
}

impl Resolved {
    /// The defaults, without any preset or file.
    pub fn defaults() -> Self {
        Self {
            config: Config::default(),
            name: "defaults".to_owned(),
            description: None,
            origins: BTreeMap::new(),
        }
    }

    /// Where the value of `key` was written.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Checks the relations between values, such as a batch that must not be smaller than the number of ranks.
    ///
    /// # Errors
    /// Every relation that does not hold, with its numbers.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.config.check(&|key| self.origin(key))
    }

    /// Checks the relations between keys for what reads no images, such as planning: `data.path` may be empty.
    ///
    /// # Errors
    /// Every other relation that does not hold, with its numbers.
    pub fn validate_without_images(&self) -> Result<(), ConfigError> {
        let mut config = self.config.clone();
        if config.data.path.is_empty() {
            // Shapes have no path.
            config.data.kind = DataKind::Shapes;
        }
        config.check(&|key| self.origin(key))
    }

    /// Sets a key on behalf of an option of the command line.
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
    pub fn set_value(&mut self, option: &str, key: &str, value: toml::Value) -> Result<(), ConfigError> {
        let origin = Origin::Option(option.to_owned());
        self.apply(Assignment { key: key.to_owned(), value, origin, raw: None })
    }

    fn apply(&mut self, assignment: Assignment) -> Result<(), ConfigError> {
        let Assignment { key, value, origin, raw } = assignment;
        let mut outcome = self.config.set(&key, &value);
        if let (Some(Err(_)), Some(raw)) = (&outcome, raw) {
            // On a command line `data.path=2024` means a path, although 2024 is a number in TOML.
            if let Some(Ok(())) = self.config.set(&key, &toml::Value::String(raw)) {
                outcome = Some(Ok(()));
            }
        }
        match outcome {
            Some(Ok(())) => {
                self.origins.insert(key, origin);
                Ok(())
            }
            Some(Err(mismatch)) => Err(ConfigError::WrongType { origin, key, mismatch: Box::new(mismatch) }),
            None if Config::sections().iter().any(|(section, _)| *section == key) => {
                let mismatch = Box::new(Mismatch::new(format!("a section, `[{key}]`"), &value));
                Err(ConfigError::WrongType { origin, key, mismatch })
            }
            None => {
                let keys = Config::keys();
                let suggestion = nearest(&key, keys.iter().map(|known| known.path.as_str()));
                Err(ConfigError::UnknownKey { origin, key, suggestion })
            }
        }
    }
}

/// Composes the preset or file called `name`, overridden by assignments `section.key=value`.
///
/// The result is typed but its relations are not checked yet: see [`Resolved::validate`].
///
/// ```
/// let sets = ["optim.lr=3e-4".to_owned()];
/// let resolved = phalanx_trainer::config::resolve("tiny", &sets).unwrap();
/// assert_eq!(resolved.config.optim.lr, 3e-4);
///
/// let sets = ["train.glbal_batch=8".to_owned()];
/// let error = phalanx_trainer::config::resolve("tiny", &sets).unwrap_err();
/// let message = "--set train.glbal_batch=8: unknown key train.glbal_batch; did you mean train.global_batch?";
/// assert_eq!(error.to_string(), message);
/// ```
///
/// # Errors
/// All unknown keys and wrong types, with their places; files that cannot be read or go round in a circle.
pub fn resolve(name: &str, sets: &[String]) -> Result<Resolved, ConfigError> {
    let (assignments, description) = layer::load(name)?;
    let stem = std::path::Path::new(name).file_stem().and_then(std::ffi::OsStr::to_str).unwrap_or(name);
    let mut resolved =
        Resolved { config: Config::default(), name: stem.to_owned(), description, origins: BTreeMap::new() };
    let mut problems = Vec::new();
    problems.extend(assignments.into_iter().filter_map(|assignment| resolved.apply(assignment).err()));
    for set in sets {
        problems.extend(resolved.set(&format!("--set {set}"), set).err());
    }
    problems.sort_by_key(|problem| match problem {
        ConfigError::UnknownKey { origin: Origin::Line { file, line }, .. }
        | ConfigError::WrongType { origin: Origin::Line { file, line }, .. } => (0, file.clone(), *line),
        _ => (1, String::new(), 0),
    });
    ConfigError::from_all(problems)?;
    Ok(resolved)
}
