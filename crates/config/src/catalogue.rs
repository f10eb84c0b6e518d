//! The catalogue of a program: its tasks with their settings, and its presets.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Value;

use super::keys::Config;
use super::layer::Assignment;
use super::origin::{ConfigError, Origin};
use super::section::{KeyDoc, Mismatch};
use super::settings::{Settings, TaskSettings};
use super::suggest::nearest;
use super::validate::Relations;

/// Checks the settings of a task.
pub(super) type Check = Arc<dyn Fn(&Config, &mut Relations<'_>) + Send + Sync>;

/// A task as the configuration knows it.
#[derive(Clone)]
pub struct TaskSchema {
    name: String,
    about: String,
    settings: TaskSettings,
    check: Option<Check>,
    /// True if it is trained on the images of `[data]`.
    images: bool,
    /// True if it is trained on mixed labels.
    mixes_labels: bool,
}

impl std::fmt::Debug for TaskSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskSchema")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl TaskSchema {
    /// A task that `model.kind = name` chooses, with settings of type `S`, trained on the images of `[data]`.
    pub fn new<S: Settings>(name: impl Into<String>, about: impl Into<String>) -> Self {
        let settings = TaskSettings::defaults::<S>();
        Self {
            name: name.into(),
            about: about.into(),
            settings,
            check: None,
            images: true,
            mixes_labels: false,
        }
    }

    /// Adds relations that its settings must fulfil.
    #[must_use]
    pub fn checked<S: Settings>(
        self,
        check: impl Fn(&S, &Config, &mut Relations<'_>) + Send + Sync + 'static,
    ) -> Self {
        let check = move |config: &Config, relations: &mut Relations<'_>| {
            if let Some(settings) = config.settings.as_type::<S>() {
                check(settings, config, relations);
            }
        };
        Self { check: Some(Arc::new(check)), ..self }
    }

    /// A task with data of its own.
    #[must_use]
    pub fn with_own_data(self) -> Self {
        Self { images: false, ..self }
    }

    /// A task whose loss takes mixed labels: a classifier.
    #[must_use]
    pub fn with_mixed_labels(self) -> Self {
        Self { mixes_labels: true, ..self }
    }

    /// Returns its name in `model.kind`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its description in a line.
    pub fn about(&self) -> &str {
        &self.about
    }
}

/// The tasks and presets of a program.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    /// The program's name.
    pub program: String,
    /// The tasks; the first is the default.
    pub tasks: Vec<TaskSchema>,
    /// Names and texts of presets, in the order in which they are listed; the first is the default.
    pub presets: Vec<(String, String)>,
}

impl Catalogue {
    /// The text of a preset.
    pub fn preset(&self, name: &str) -> Option<&str> {
        self.presets.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// Returns the default preset: the first, if there are any.
    pub fn default_preset(&self) -> Option<&str> {
        self.presets.first().map(|(name, _)| name.as_str())
    }

    /// The task called `name`.
    pub fn task(&self, name: &str) -> Option<&TaskSchema> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// Applies assignments in their order to the defaults of the task that they choose: the configuration, where its values
    /// come from, and what is wrong.
    pub(super) fn compose(
        &self,
        assignments: &[Assignment],
        of_run: bool,
    ) -> (Config, BTreeMap<String, Origin>, Vec<ConfigError>) {
        let chosen = assignments.iter().rev().find(|assignment| assignment.key == "model.kind");
        let chosen = chosen.and_then(|chosen| Some((self.task(chosen.value.as_str()?)?, chosen.layer)));
        let task = chosen.map(|(task, _)| task).or(self.tasks.first());
        let mut config = Config::default();
        if let Some(task) = task {
            config.model.kind.clone_from(&task.name);
            config.settings = task.settings.clone();
        }
        // What lies below the layer that has chosen the task may be meant for another one.
        let chosen_in = chosen.map_or(0, |(_, layer)| layer);
        let (mut origins, mut problems) = (BTreeMap::new(), Vec::new());
        for assignment in assignments {
            let foreign_is_fine = of_run && !assignment.is_option() || assignment.layer < chosen_in;
            match self.apply(&mut config, assignment, foreign_is_fine) {
                Ok(Some(key)) => drop(origins.insert(key, assignment.origin.clone())),
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        config.settle_periods(assignments);
        (config, origins, problems)
    }

    /// Applies one assignment: the key that was set, if it is one of this task.
    fn apply(
        &self,
        config: &mut Config,
        assignment: &Assignment,
        foreign_is_fine: bool,
    ) -> Result<Option<String>, ConfigError> {
        let Assignment { key, value, origin, raw, .. } = assignment;
        let (key, origin) = (key.clone(), origin.clone());
        if key == "model.kind" {
            return match value.as_str().is_some_and(|kind| self.task(kind).is_some()) {
                true => Ok(Some(key)),
                false => {
                    Err(ConfigError::WrongType { origin, key, mismatch: Box::new(self.no_such_task(value)) })
                }
            };
        }
        let mut outcome = config.set(&key, value);
        if let (Some(Err(_)), Some(raw)) = (&outcome, raw) {
            // On a command line `data.path=2024` means a path, although 2024 is a number in TOML.
            if let Some(Ok(())) = config.set(&key, &Value::String(raw.clone())) {
                outcome = Some(Ok(()));
            }
        }
        match outcome {
            Some(Ok(())) => Ok(Some(key)),
            Some(Err(mismatch)) => Err(ConfigError::WrongType { origin, key, mismatch: Box::new(mismatch) }),
            None if Config::sections().iter().any(|(section, _)| *section == key) => {
                let mismatch = Box::new(Mismatch::new(format!("a section, `[{key}]`"), value));
                Err(ConfigError::WrongType { origin, key, mismatch })
            }
            None => {
                let has = |task: &&TaskSchema| task.settings.keys().iter().any(|known| known.path == key);
                let of: Vec<String> = self.tasks.iter().filter(has).map(|task| task.name.clone()).collect();
                if !of.is_empty() {
                    let kind = config.model.kind.clone();
                    return match foreign_is_fine {
                        true => Ok(None),
                        false => Err(ConfigError::ForeignKey { origin, key, of, kind }),
                    };
                }
                let keys = config.keys();
                let suggestion = nearest(&key, keys.iter().map(|known| known.path.as_str()));
                Err(ConfigError::UnknownKey { origin, key, suggestion })
            }
        }
    }

    fn no_such_task(&self, value: &Value) -> Mismatch {
        let names = || self.tasks.iter().map(|task| task.name.as_str());
        let all: Vec<String> = names().map(|name| format!("`{name}`")).collect();
        Mismatch {
            nearest: nearest(value.as_str().unwrap_or_default(), names()),
            ..Mismatch::new(format!("one of {}", all.join(", ")), value)
        }
    }

    /// All keys of a configuration, with what `model.kind` can be.
    pub(super) fn keys(&self, config: &Config) -> Vec<KeyDoc> {
        let mut keys = config.keys();
        if let Some(kind) = keys.iter_mut().find(|key| key.path == "model.kind") {
            let all: Vec<String> = self.tasks.iter().map(|task| format!("`{}`", task.name)).collect();
            kind.kind = format!("one of {}", all.join(", "));
            kind.default =
                Value::String(self.tasks.first().map(|task| task.name.clone()).unwrap_or_default());
        }
        keys
    }

    /// Checks the relations between values; `images` says whether those of `[data]` will be read.
    pub(super) fn check(
        &self,
        config: &Config,
        origin: &dyn Fn(&str) -> Origin,
        images: bool,
    ) -> Result<(), ConfigError> {
        let task = self.task(&config.model.kind);
        let images = images && task.is_some_and(|task| task.images);
        let mut relations = Relations::new(origin);
        config.check(&mut relations, images);
        if let Some(check) = task.and_then(|task| task.check.as_ref()) {
            check(config, &mut relations);
        }
        if task.is_some_and(|task| !task.mixes_labels) {
            config.data.check_mixing(&mut relations, &config.model.kind);
        }
        relations.finish()?;
        // What all networks have wrong is told once, above.
        for name in config.networks.keys() {
            let origin = |key: &str| origin(&format!("{name}.{key}"));
            let mut relations = Relations::new(&origin);
            config.for_network(name).check(&mut relations, images);
            relations.finish()?;
        }
        Ok(())
    }
}
