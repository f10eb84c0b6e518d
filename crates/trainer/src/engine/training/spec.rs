//! A task: what a name in the configuration stands for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_data::{BatchSource, Split};
use phalanx_tensor::ComputeDevice;

use super::phase::Training;
use super::setup::{Built, Setup, Weights};
use crate::config::{Config, Relations, Settings, TaskSchema};
use crate::engine::error::TrainError;

type BuildFn = Arc<dyn Fn(Setup<'_>) -> Result<Built, TrainError> + Send + Sync>;
type FirstFn = Arc<dyn Fn(&Config) -> Option<FirstRun> + Send + Sync>;
type DataFn = Arc<dyn Fn(&Config, Split) -> Result<Arc<dyn BatchSource>, TrainError> + Send + Sync>;

/// A row of a program's table of tasks: a name for `model.kind`, settings of type `S` in `[model]`, and how its training is
/// built of them.
///
/// It is trained on the images that `[data]` describes, unless it has [data of its own](TaskSpec::data).
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
    /// The task that `model.kind = name` chooses, described in a line.
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
            judges: Arc::default(),
        };
        Self { task, settings: std::marker::PhantomData }
    }

    /// Says which relations the settings must fulfil, before anything is built.
    #[must_use]
    pub fn validate(
        mut self,
        check: impl Fn(&S, &Config, &mut Relations<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.task.schema = self.task.schema.checked(check);
        self
    }

    /// Says which run must be trained before, unless `key` names the folder of one that is there already.
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

    /// Says where the batches of each split come from, in place of the images of `[data]`.
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

/// A run that another one builds on, and that is trained before it unless there is one already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstRun {
    /// What is trained: a preset.
    pub preset: String,
    /// Overrides of its keys, `section.key=value`.
    pub sets: Vec<String>,
}

/// The settings of a task in a configuration.
fn settings<S: Settings>(config: &Config) -> Result<&S, TrainError> {
    config.settings.as_type().ok_or_else(|| {
        TrainError::Setup(format!(
            "the configuration of `{}` has the settings of another task",
            config.model.kind
        ))
    })
}

/// A task whose settings are of any type. Clones are handles.
#[derive(Clone)]
pub struct Task {
    schema: TaskSchema,
    build: BuildFn,
    data: Option<DataFn>,
    first: Option<(&'static str, FirstFn)>,
    judges: Arc<[Judge]>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A run whose network judges the pictures of others: its folder, its configuration, and the task that this names. Clones are
/// handles.
#[derive(Debug, Clone)]
pub struct Judge {
    pub(in crate::engine) run: PathBuf,
    pub(in crate::engine) task: Task,
    pub(in crate::engine) config: Arc<Config>,
}

impl Judge {
    /// The judge in the folder `run`.
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
    /// What the configuration knows of it.
    pub fn schema(&self) -> &TaskSchema {
        &self.schema
    }

    /// The run that must be trained before one of `config`, if there is one.
    pub fn first_run(&self, config: &Config) -> Option<FirstRun> {
        (self.first.as_ref()?.1)(config)
    }

    /// The key that names the folder of the run that one of this task builds on, if there is such a key.
    pub fn first_key(&self) -> Option<&'static str> {
        self.first.as_ref().map(|(key, _)| *key)
    }

    /// The task with judges of the pictures that it draws, which `[quality]` of the configuration says when to ask.
    #[must_use]
    pub fn judged_by(self, judges: Vec<Judge>) -> Self {
        Self { judges: judges.into(), ..self }
    }

    /// Who judges the pictures that it draws.
    pub(in crate::engine) fn judges(&self) -> &[Judge] {
        &self.judges
    }

    /// Builds the training on data of so many classes; without a number the configured images are asked for it.
    pub(in crate::engine) fn build(
        &self,
        config: &Config,
        classes: Option<usize>,
        weights: Weights,
        device: &ComputeDevice,
    ) -> Result<Built, TrainError> {
        // Configured images without classes have no number of them, so that whoever asks for it hears why.
        let classes = if self.data.is_some() { Some(0) } else { classes.filter(|number| *number > 0) };
        (self.build)(Setup::new(config, classes, weights, device))
    }

    /// Data of its own, if it has some.
    pub(in crate::engine) fn open_data(
        &self,
        config: &Config,
    ) -> Option<Result<[Arc<dyn BatchSource>; 2], TrainError>> {
        let open = self.data.as_ref()?;
        Some(open(config, Split::Train).and_then(|train| Ok([train, open(config, Split::Test)?])))
    }
}
