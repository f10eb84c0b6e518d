//! Trainings within this process, whose ranks are threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use phalanx_config::{Detail, Resolved};
use phalanx_run::{RunFolder, StopFlag};
use phalanx_trainer::engine::{Event, Observer, StepReport, World, train, train_replicas};

/// The words of lines of settings.
pub(crate) fn words(lines: &[&str]) -> Vec<String> {
    lines.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect()
}

/// The preset `tiny` with settings.
///
/// # Errors
/// If a setting is unknown or unsound.
pub(crate) fn try_resolve(settings: &[&str]) -> Result<Resolved, String> {
    let resolved = phalanx::program().resolve("tiny", &words(settings));
    let resolved = resolved.and_then(|resolved| resolved.validate().map(|()| resolved));
    resolved.map_err(|error| error.to_string())
}

/// The preset `tiny` with settings, which must be sound.
pub(crate) fn resolve(settings: &[&str]) -> Resolved {
    try_resolve(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

/// The error of settings of the preset `tiny` that must be refused.
pub(crate) fn refusal(settings: &[&str]) -> String {
    try_resolve(settings).err().unwrap_or_else(|| panic!("{settings:?} are accepted"))
}

/// The run in a folder, or a new one.
pub(crate) fn run_in(path: &Path) -> RunFolder {
    match path.exists() {
        true => RunFolder::open(path).expect("a run"),
        false => RunFolder::create(Some(path), path, "run").expect("a new run"),
    }
}

/// Trains, or resumes, in a folder by `train.ranks` ranks and the servers.
///
/// # Errors
/// If the training fails.
pub(crate) fn try_train(
    folder: &RunFolder,
    resolved: &Resolved,
    observer: Box<dyn Observer>,
) -> Result<(), String> {
    std::fs::write(folder.config(), resolved.to_toml(Detail::Values).trim_start()).expect("writes");
    let program = phalanx::program();
    let task = program.task_of(&resolved.config).expect("a task");
    let stop = StopFlag::default();
    match resolved.config.world_size() {
        1 => train(task, folder, resolved, &World::alone(), &stop, observer)
            .map(drop)
            .map_err(|error| error.to_string()),
        _ => train_replicas(task, folder, resolved, &stop, observer).map_err(|error| error.error.to_string()),
    }
}

/// The row of an evaluation.
type OfMeasures<Row> = fn(&[(String, f64)]) -> Row;

/// The rows that rank 0 reports: of steps, and of evaluations.
pub(crate) struct Recorder<Row> {
    rows: Arc<Mutex<Vec<Row>>>,
    of_step: fn(&StepReport) -> Row,
    of_measures: Option<OfMeasures<Row>>,
}

impl<Row> Clone for Recorder<Row> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), of_step: self.of_step, of_measures: self.of_measures }
    }
}

impl<Row: 'static> Recorder<Row> {
    /// Records a row of each step.
    pub(crate) fn of_steps(of_step: fn(&StepReport) -> Row) -> Self {
        Self { rows: Arc::default(), of_step, of_measures: None }
    }

    /// Records a row of each evaluation, too.
    pub(crate) fn and_evaluations(self, of_measures: OfMeasures<Row>) -> Self {
        Self { of_measures: Some(of_measures), ..self }
    }

    /// The rows until now, which are removed.
    pub(crate) fn take(&self) -> Vec<Row> {
        std::mem::take(&mut *self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, row: Row) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }

    /// Trains, or resumes, in a folder. Returns the rows.
    pub(crate) fn train(&self, folder: &RunFolder, resolved: &Resolved) -> Vec<Row> {
        try_train(folder, resolved, Box::new(self.clone()))
            .unwrap_or_else(|error| panic!("{}: {error}", resolved.config.train.strategy));
        self.take()
    }
}

impl<Row: 'static> Observer for Recorder<Row> {
    fn step(&mut self, report: &StepReport, _logged: bool) {
        self.push((self.of_step)(report));
    }

    fn event(&mut self, event: &Event) {
        if let (Event::Evaluated { measures, .. }, Some(row)) = (event, self.of_measures) {
            self.push(row(measures));
        }
    }
}

/// Results that are computed once in this process, by key.
pub(crate) struct Once<K, V>(Mutex<BTreeMap<K, Arc<OnceLock<Arc<V>>>>>);

impl<K: Ord, V> Once<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of a key. Other threads that want it wait while it is computed.
    pub(crate) fn get(&self, key: K, compute: impl FnOnce() -> V) -> Arc<V> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        slot.get_or_init(|| Arc::new(compute())).clone()
    }
}
