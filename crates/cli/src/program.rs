//! A program: its name, tasks, presets and studies.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use phalanx_config::{Catalogue, Config, ConfigError, Resolved};
use phalanx_tensor::Precision;
use phalanx_trainer::engine::Task;

use crate::sweep::{SweepFile, SweepFileError};

/// A request for pictures by published weights: `phalanx sample --diffusers`.
#[derive(Debug, Clone)]
pub struct PublishedRequest {
    /// The folder of weights.
    pub folder: PathBuf,
    /// The precision of products and activations.
    pub precision: Precision,
    /// The prompts, a row of pictures each.
    pub prompts: Vec<String>,
    /// Pictures for each prompt.
    pub columns: usize,
    /// Height and width in pixels; those of the weights if not given.
    pub size: Option<usize>,
    /// The name of the sampler.
    pub sampler: String,
    /// Evaluations of the network for each picture.
    pub steps: usize,
    /// The noise that a DDIM step adds, from 0 to 1.
    pub eta: f64,
    /// The scale of classifier-free guidance.
    pub guidance: f64,
    /// A text that pictures are guided away from; empty for none.
    pub negative: String,
    /// The seed of the noise, or one for each column.
    pub seeds: Vec<u64>,
}

/// Pictures made with published weights.
#[derive(Debug, Clone)]
pub struct PublishedPictures {
    /// Height and width in pixels.
    pub size: usize,
    /// Values of each picture in `[3, size, size]`, from -1 to 1, row by row of the grid.
    pub pictures: Vec<Vec<f32>>,
    /// The time that they took, without reading weights.
    pub time: Duration,
}

/// Makes pictures with published weights. The closure gets a line that describes the weights, before the work begins.
pub type PublishedSampler = fn(
    &PublishedRequest,
    &mut dyn FnMut(&str),
) -> Result<PublishedPictures, Box<dyn std::error::Error + Send + Sync>>;

/// Tasks and presets under a name. [`crate::main`] makes a command line of it.
#[derive(Debug, Clone)]
pub struct Program {
    name: &'static str,
    catalogue: Arc<Catalogue>,
    tasks: Vec<Task>,
    about: Option<&'static str>,
    studies: Vec<(String, String)>,
    published: Option<PublishedSampler>,
}

impl Program {
    /// A program that can do nothing yet.
    pub fn new(name: &'static str) -> Self {
        let catalogue = Catalogue { program: name.to_owned(), ..Catalogue::default() };
        Self {
            name,
            catalogue: Arc::new(catalogue),
            tasks: Vec::new(),
            about: None,
            studies: Vec::new(),
            published: None,
        }
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

    /// Adds a study: a name and the TOML of a sweep. A program without studies hides the command `study`.
    #[must_use]
    pub fn study(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.studies.push((name.into(), text.into()));
        self
    }

    /// Sets the sentence that `--help` begins with.
    #[must_use]
    pub fn about(mut self, about: &'static str) -> Self {
        self.about = Some(about);
        self
    }

    /// Sets the sampler of published weights, for `sample --diffusers`.
    #[must_use]
    pub fn published(mut self, sampler: PublishedSampler) -> Self {
        self.published = Some(sampler);
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The sentence that `--help` begins with, if it has one.
    pub fn description(&self) -> Option<&'static str> {
        self.about
    }

    /// The names of its studies, in the order in which they are listed.
    pub fn studies(&self) -> impl Iterator<Item = &str> {
        self.studies.iter().map(|(name, _)| name.as_str())
    }

    /// Parses the study called `name`.
    ///
    /// # Errors
    /// If there is none, or its text is no sweep.
    pub fn study_named(&self, name: &str) -> Result<SweepFile, SweepFileError> {
        let known: Vec<&str> = self.studies().collect();
        let found = self.studies.iter().find(|(known, _)| known == name);
        let (name, text) = found.ok_or_else(|| SweepFileError::no_such_study(name, &known))?;
        SweepFile::parse(&format!("studies/{name}.toml"), text)
    }

    /// The sampler of published weights, if the program has one.
    pub fn published_sampler(&self) -> Option<PublishedSampler> {
        self.published
    }

    /// Its tasks and presets, as the configuration knows them.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Composes the preset or file called `name`, overridden by assignments `section.key=value`.
    ///
    /// The result is typed but its relations are not checked yet: see [`Resolved::validate`].
    ///
    /// # Errors
    /// All unknown keys and wrong types, with their places; files that cannot be read or go round in a circle.
    pub fn resolve(&self, name: &str, sets: &[String]) -> Result<Resolved, ConfigError> {
        self.catalogue.resolve(Some(name), sets)
    }

    /// Its tasks, in the order in which they were added.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter()
    }

    /// The task that a configuration chooses; nothing for one of another program.
    pub fn task_of(&self, config: &Config) -> Option<&Task> {
        self.tasks.iter().find(|task| task.schema().name() == config.model.kind)
    }
}
