//! A configuration composed from a catalogue, and where each of its values was written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use toml::Value;

use super::catalogue::Catalogue;
use super::keys::Config;
use super::layer::{self, Assignment, Presets};
use super::origin::{ConfigError, Origin};

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

impl Catalogue {
    /// Composes the preset or file called `name`, or nothing but defaults, overridden by assignments `section.key=value`.
    ///
    /// The result is typed but its relations are not checked yet: see [`Resolved::validate`].
    ///
    /// # Errors
    /// All unknown keys and wrong types, with their places; files that cannot be read or go round in a circle.
    pub fn resolve(self: &Arc<Self>, name: Option<&str>, sets: &[String]) -> Result<Resolved, ConfigError> {
        self.compose_named(name, sets, false)
    }

    /// Composes the configuration that a run's folder holds. Of one that an older program has written keys are taken over by
    /// their new names, and keys of other tasks are left out.
    ///
    /// # Errors
    /// As [`Catalogue::resolve`].
    pub fn resolve_run(self: &Arc<Self>, config: &Path) -> Result<Resolved, ConfigError> {
        self.compose_named(Some(&config.display().to_string()), &[], true)
    }

    fn compose_named(
        self: &Arc<Self>,
        name: Option<&str>,
        sets: &[String],
        of_run: bool,
    ) -> Result<Resolved, ConfigError> {
        let (mut assignments, description) = match name {
            Some(name) => {
                let presets = Presets { program: &self.program, texts: &self.presets };
                layer::load(&presets, name)?
            }
            None => (Vec::new(), None),
        };
        let mut problems = Vec::new();
        for set in sets {
            match layer::parse_option(&format!("--set {set}"), set) {
                Ok(assignment) => assignments.push(assignment),
                Err(error) => problems.push(error),
            }
        }
        let stem = name.map(|name| {
            Path::new(name).file_stem().and_then(std::ffi::OsStr::to_str).unwrap_or(name).to_owned()
        });
        let (config, origins, more) = self.compose(&assignments, of_run);
        problems.extend(more);
        problems.sort_by_key(|problem| match problem {
            ConfigError::UnknownKey { origin: Origin::Line { file, line }, .. }
            | ConfigError::ForeignKey { origin: Origin::Line { file, line }, .. }
            | ConfigError::WrongType { origin: Origin::Line { file, line }, .. } => (0, file.clone(), *line),
            _ => (1, String::new(), 0),
        });
        ConfigError::from_all(problems)?;
        let name = stem.unwrap_or_else(|| self.program.clone());
        Ok(Resolved { config, name, description, origins, catalogue: self.clone(), assignments, of_run })
    }
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
