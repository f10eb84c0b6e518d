//! A program: its name, the tasks that it can train, and its presets.

use std::sync::Arc;

use crate::config::{Catalogue, Config, ConfigError, Resolved};
use crate::engine::Task;
use crate::tasks;

/// What [`crate::main`] makes a command line of.
///
/// ```no_run
/// # use phalanx_trainer::engine::{Setup, TrainError, Training};
/// # fn build(_: &mut Setup<'_>, _: &()) -> Result<Training<()>, TrainError> { unimplemented!() }
/// use phalanx_trainer::{Program, TaskSpec};
///
/// fn main() -> std::process::ExitCode {
///     let task = TaskSpec::new("points", "Learns where points lie", build);
///     let short = "[train]\nsteps = 100\n";
///     phalanx_trainer::main(&Program::new("my-points").task(task).preset("short", short))
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Program {
    name: &'static str,
    catalogue: Arc<Catalogue>,
    tasks: Vec<Task>,
    reference: bool,
}

impl Program {
    /// A program that can do nothing yet.
    pub fn new(name: &'static str) -> Self {
        let catalogue = Catalogue { program: name.to_owned(), ..Catalogue::default() };
        Self { name, catalogue: Arc::new(catalogue), tasks: Vec::new(), reference: false }
    }

    /// The program `phalanx`: the tasks and presets that come with this crate.
    pub fn phalanx() -> Self {
        let mut program = tasks::rows().into_iter().fold(Self::new("phalanx"), Self::task);
        for (name, text) in tasks::PRESETS {
            program = program.preset(*name, *text);
        }
        let moved = tasks::MOVED.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
        Arc::make_mut(&mut program.catalogue).moved = moved.collect();
        Self { reference: true, ..program }
    }

    /// Adds a task; the first is the default. One of the same name takes the place of the one that was there.
    #[must_use]
    pub fn task(mut self, task: impl Into<Task>) -> Self {
        let task = task.into();
        let catalogue = Arc::make_mut(&mut self.catalogue);
        let name = task.schema().name();
        match catalogue.tasks.iter().position(|known| known.name() == name) {
            Some(at) => {
                catalogue.tasks[at] = task.schema().clone();
                self.tasks[at] = task;
            }
            None => {
                catalogue.tasks.push(task.schema().clone());
                self.tasks.push(task);
            }
        }
        self
    }

    /// Adds a preset: a name and the TOML of a configuration. The first is what is trained if nothing is asked for.
    #[must_use]
    pub fn preset(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.catalogue).presets.push((name.into(), text.into()));
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it compares itself with the values of reference implementations.
    pub(crate) fn has_reference(&self) -> bool {
        self.reference
    }

    /// Its tasks and presets, as the configuration knows them.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Composes the preset or file called `name`, overridden by assignments `section.key=value`.
    ///
    /// The result is typed but its relations are not checked yet: see [`Resolved::validate`].
    ///
    /// ```
    /// let phalanx = phalanx_trainer::Program::phalanx();
    /// let resolved = phalanx.resolve("tiny", &["optim.lr=3e-4".to_owned()]).unwrap();
    /// assert_eq!(resolved.config.optim.lr, 3e-4);
    ///
    /// let error = phalanx.resolve("tiny", &["train.glbal_batch=8".to_owned()]).unwrap_err();
    /// let message = "--set train.glbal_batch=8: unknown key train.glbal_batch; did you mean train.global_batch?";
    /// assert_eq!(error.to_string(), message);
    /// ```
    ///
    /// # Errors
    /// All unknown keys and wrong types, with their places; files that cannot be read or go round in a circle.
    pub fn resolve(&self, name: &str, sets: &[String]) -> Result<Resolved, ConfigError> {
        self.catalogue.resolve(Some(name), sets)
    }

    /// The task that a configuration chooses; nothing for one of another program.
    pub fn task_of(&self, config: &Config) -> Option<&Task> {
        self.tasks.iter().find(|task| task.schema().name() == config.model.kind)
    }
}
