//! Tasks: trainings that a configuration can name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_data::{BatchSource, Links, Split};
use phalanx_run::{RunError, write_aside};

use super::phase::Training;
use super::reference::ReferenceModel;
use super::setup::{BuildTarget, Built, Setup};
use crate::engine::error::TrainError;
use phalanx_config::{Config, Relations, Settings, TaskSchema};

type BuildFn = Arc<dyn Fn(Setup<'_>) -> Result<Built, TrainError> + Send + Sync>;
type FirstFn = Arc<dyn Fn(&Config) -> Option<FirstRun> + Send + Sync>;
type ReferenceFn = Arc<dyn Fn(&Config, usize) -> Option<ReferenceModel> + Send + Sync>;
type KeepFn = Arc<dyn Fn(&Config) -> Result<Option<Vec<u8>>, TrainError> + Send + Sync>;
type DataFn = Arc<dyn Fn(&Config, Split) -> Result<Arc<dyn BatchSource>, TrainError> + Send + Sync>;

/// A task of a program: a name for `model.kind`, settings of type `S` in `[model]`, and a function that builds its training.
///
/// It trains on the images of `[data]`, unless it has [its own data](TaskSpec::data).
pub struct TaskSpec<S> {
    task: Task,
    settings: std::marker::PhantomData<S>,
}

impl<S> std::fmt::Debug for TaskSpec<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.task.fmt(f)
    }
}

impl<S: Settings> TaskSpec<S> {
    /// Creates the task that `model.kind = name` chooses, with a description of one line.
    pub fn new<M: Sync + 'static>(
        name: impl Into<String>,
        about: impl Into<String>,
        build: impl Fn(&mut Setup<'_>, &S) -> Result<Training<M>, TrainError> + Send + Sync + 'static,
    ) -> Self {
        let build = move |mut setup: Setup<'_>| {
            let config = setup.config();
            let training = build(&mut setup, settings(config)?)?;
            setup.finish(training)
        };
        let task = Task {
            schema: TaskSchema::new::<S>(name, about),
            build: Arc::new(build),
            data: None,
            first: None,
            reference: None,
            kept: Vec::new(),
            transformers: None,
            evaluators: Arc::default(),
        };
        Self { task, settings: std::marker::PhantomData }
    }

    /// Sets the check of the settings, before anything is built.
    #[must_use]
    pub fn validate(
        mut self,
        check: impl Fn(&S, &Config, &mut Relations<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.task.schema = self.task.schema.checked(check);
        self
    }

    /// Allows `data.mixup` and `data.cutmix`: the loss reads [`Batch::mixed_labels`](crate::engine::Batch::mixed_labels).
    #[must_use]
    pub fn mixes_labels(mut self) -> Self {
        self.task.schema = self.task.schema.with_mixed_labels();
        self
    }

    /// Sets the run that must be trained first, unless `key` names the folder of one.
    #[must_use]
    pub fn first(
        mut self,
        key: &'static str,
        first: impl Fn(&S, &Config) -> Option<FirstRun> + Send + Sync + 'static,
    ) -> Self {
        let first: FirstFn = Arc::new(move |config| first(config.settings.as_type()?, config));
        self.task.first = Some((key, first));
        self
    }

    /// Sets the model of a Python library that loads the same weights, for the settings, the configuration and this number of classes;
    /// `None` where there is none. Exports name it.
    #[must_use]
    pub fn reference(
        mut self,
        reference: impl Fn(&S, &Config, usize) -> Option<ReferenceModel> + Send + Sync + 'static,
    ) -> Self {
        self.task.reference =
            Some(Arc::new(move |config, classes| reference(config.settings.as_type()?, config, classes)));
        self
    }

    /// Adds a file without which the weights mean nothing, such as a tokenizer: `make` returns its contents when a run begins, if it
    /// has one. The run's folder and exported folders hold it, and `key` names it when a trained model is opened.
    #[must_use]
    pub fn keeps(
        mut self,
        file: KeptFile,
        make: impl Fn(&S, &Config) -> Result<Option<Vec<u8>>, TrainError> + Send + Sync + 'static,
    ) -> Self {
        let make: KeepFn = Arc::new(move |config| make(settings(config)?, config));
        self.task.kept.push((file, make));
        self
    }

    /// Names the models of Hugging Face's transformers that the task has. Folders of their weights are then used as exports: the
    /// [kept files](TaskSpec::keeps) are those of the folder.
    #[must_use]
    pub fn transformers(mut self, models: TransformersModels) -> Self {
        self.task.transformers = Some(models);
        self
    }

    /// Sets the source of the batches of each split, in place of the images of `[data]`.
    #[must_use]
    pub fn data(
        mut self,
        open: impl Fn(&S, &Config, Split) -> Result<Arc<dyn BatchSource>, TrainError> + Send + Sync + 'static,
    ) -> Self {
        self.task.schema = self.task.schema.with_own_data();
        self.task.data = Some(Arc::new(move |config, split| open(settings(config)?, config, split)));
        self
    }
}

/// A run that another one builds on, and that is trained before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstRun {
    /// The preset.
    pub preset: String,
    /// Overrides of its keys, `section.key=value`.
    pub sets: Vec<String>,
}

/// Models of Hugging Face's transformers that a task has, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransformersModels {
    /// The types in `model_type` of their `config.json`.
    pub types: &'static [&'static str],
    /// The class in `architectures` that tells them from models of other tasks with the same type.
    pub architecture: Option<&'static str>,
    /// The class of transformers that loads them.
    pub loader: &'static str,
    /// The name of their use on model cards.
    pub pipeline: &'static str,
    /// A command that uses an exported `FOLDER`, without the program's name.
    pub command: &'static str,
    /// The length of texts of a folder that is used without training.
    pub length: TextLength,
}

/// The length of the texts of published models, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLength {
    /// The key of the configuration.
    pub key: &'static str,
    /// The key of the positions in a `config.json`.
    pub positions: &'static str,
    /// True if texts are as long as the positions; false if positions only bound the configured length, as of a model that continues
    /// texts of any length.
    pub fills: bool,
}

impl TextLength {
    /// The length of texts that are read as a whole.
    pub const WHOLE: Self = Self { key: "model.context", positions: "max_position_embeddings", fills: true };
}

impl TransformersModels {
    /// Returns true for the models of a `config.json`, by its type and its first class of `architectures`.
    pub fn has(&self, model_type: &str, architecture: Option<&str>) -> bool {
        let is_class = self.architecture.is_none_or(|class| architecture.is_none_or(|other| other == class));
        is_class && self.types.contains(&model_type)
    }
}

/// A file that belongs to the weights of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptFile {
    /// The name in the folder of a run or an export.
    pub name: &'static str,
    /// The key of the configuration that names it when the weights are used.
    pub key: &'static str,
    /// True if a run that is continued must have the same.
    pub is_fixed: bool,
}

/// Returns the settings of a task in a configuration.
fn settings<S: Settings>(config: &Config) -> Result<&S, TrainError> {
    config.settings.as_type().ok_or_else(|| {
        TrainError::Setup(format!(
            "the configuration of `{}` has the settings of another task",
            config.model.kind
        ))
    })
}

/// A task with settings of any type. Clones are handles.
#[derive(Clone)]
pub struct Task {
    schema: TaskSchema,
    build: BuildFn,
    data: Option<DataFn>,
    first: Option<(&'static str, FirstFn)>,
    reference: Option<ReferenceFn>,
    kept: Vec<(KeptFile, KeepFn)>,
    transformers: Option<TransformersModels>,
    evaluators: Arc<[Evaluator]>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A run whose network measures the images of other runs: its folder, task and configuration. Clones are handles.
#[derive(Debug, Clone)]
pub struct Evaluator {
    pub(in crate::engine) run: PathBuf,
    pub(in crate::engine) task: Task,
    pub(in crate::engine) config: Arc<Config>,
}

impl Evaluator {
    /// Creates the evaluator of the run in the folder `run`.
    pub fn new(run: &Path, task: Task, config: Config) -> Self {
        Self { run: run.to_owned(), task, config: Arc::new(config) }
    }
}

impl<S> From<TaskSpec<S>> for Task {
    fn from(spec: TaskSpec<S>) -> Self {
        spec.task
    }
}

impl Task {
    /// The schema of its settings.
    pub fn schema(&self) -> &TaskSchema {
        &self.schema
    }

    /// The run that must be trained before a run of `config`, if there is one.
    pub fn first_run(&self, config: &Config) -> Option<FirstRun> {
        (self.first.as_ref()?.1)(config)
    }

    /// The key that names the folder of the first run, if there is one.
    pub fn first_key(&self) -> Option<&'static str> {
        self.first.as_ref().map(|(key, _)| *key)
    }

    /// The model of a Python library that loads the weights of a run of `config` on this number of classes, if there is one.
    pub fn reference(&self, config: &Config, classes: usize) -> Option<ReferenceModel> {
        (self.reference.as_ref()?)(config, classes)
    }

    /// The files that belong to its weights.
    pub fn kept_files(&self) -> impl Iterator<Item = KeptFile> {
        self.kept.iter().map(|(file, _)| *file)
    }

    /// The models of Hugging Face's transformers that it has.
    pub fn transformers(&self) -> Option<TransformersModels> {
        self.transformers
    }

    /// Writes the files that belong to the weights into the folder of a run. One that is continued must have the same fixed files.
    pub(in crate::engine) fn keep(
        &self,
        config: &Config,
        folder: &Path,
        is_new: bool,
    ) -> Result<(), TrainError> {
        for (file, make) in &self.kept {
            let Some(contents) = make(config)? else { continue };
            let path = folder.join(file.name);
            if is_new || !file.is_fixed {
                write_aside(&path, &contents).map_err(RunError::io("write", &path))?;
                continue;
            }
            let before = Links::Refuse.read(&path);
            if before.is_ok_and(|before| before != contents) {
                return Err(TrainError::Setup(format!(
                    "{} is not that of the data and settings (data.path = {:?}): the weights were trained with another one",
                    path.display(),
                    config.data.path
                )));
            }
        }
        Ok(())
    }

    /// Sets the evaluators of generated images, which `[quality]` schedules.
    #[must_use]
    pub fn with_evaluators(self, evaluators: Vec<Evaluator>) -> Self {
        Self { evaluators: evaluators.into(), ..self }
    }

    /// The evaluators of generated images.
    pub(in crate::engine) fn evaluators(&self) -> &[Evaluator] {
        &self.evaluators
    }

    /// Builds the training on data of this number of classes; if it is not given, it is read from the configured images when needed.
    pub(in crate::engine) fn build(
        &self,
        config: &Config,
        classes: Option<usize>,
        target: BuildTarget<'_>,
    ) -> Result<Built, TrainError> {
        // Images without classes give no number, so that a training that needs it fails with the reason.
        let classes = if self.data.is_some() { Some(0) } else { classes.filter(|number| *number > 0) };
        (self.build)(Setup::new(config, classes, target))
    }

    /// True if it is trained on the images of `[data]`.
    pub fn reads_images(&self) -> bool {
        self.data.is_none()
    }

    /// Opens both splits of its own data, if it has any.
    pub(in crate::engine) fn open_data(
        &self,
        config: &Config,
    ) -> Option<Result<[Arc<dyn BatchSource>; 2], TrainError>> {
        let open = self.data.as_ref()?;
        Some(open(config, Split::Train).and_then(|train| Ok([train, open(config, Split::Test)?])))
    }
}
