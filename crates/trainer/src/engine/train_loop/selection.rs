//! The best evaluation so far, which names the checkpoint to keep and ends a run that does not improve.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::environment::Environment;
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use crate::engine::training::{AnyTraining, TrainingOutline};
use phalanx_checkpoint::{Checkpoint, Retention};
use phalanx_config::{BestMeasure, Config, ScheduleKind, nearest};
use phalanx_run::{BestEvaluation, Line};

/// The entry of a checkpoint's index.
const ENTRY: &str = "selection";

/// The comparison of a run's evaluations. All ranks hold the same.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// The measure that is compared; `None` if evaluations are not compared.
    measure: Option<BestMeasure>,
    /// True if the best checkpoint is kept.
    keeps_best: bool,
    /// The evaluations without an improvement that end the run; 0 = none do.
    patience: u64,
    /// The last step of the run, as configured.
    planned_stop: u64,
    schedule: EvaluationSchedule,
    record: SelectionRecord,
}

/// The steps after which the compared measure is evaluated in a run that goes through to its end.
#[derive(Debug, Clone, Copy)]
struct EvaluationSchedule {
    /// The period in steps; 0 = only at the end.
    period: u64,
    /// The step at which schedules end.
    horizon: u64,
}

impl EvaluationSchedule {
    /// True if the evaluation of a step counts. One more at the end of a run that stops between two of them, and that may go on, does not:
    /// a resumed run would differ from one without a stop.
    fn has(&self, step: u64) -> bool {
        self.period == 0 || step.is_multiple_of(self.period) || step == self.horizon
    }
}

/// The result of the evaluations so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct SelectionRecord {
    /// The step of the last evaluation that was compared.
    evaluated: u64,
    best: Option<BestEvaluation>,
    /// The number of evaluations since the best one.
    stale: u64,
}

/// Checks that the training has the measure of `checkpoint.best`, and that its direction is known. Measures of judges are known once they
/// have measured.
pub(in crate::engine) fn check_measure(
    config: &Config,
    training: &dyn AnyTraining,
) -> Result<(), TrainError> {
    let Some(BestMeasure { name, goal }) = config.best_measure() else { return Ok(()) };
    let names = test_names(&training.outline());
    if !names.contains(&name) && config.quality.judges.is_empty() {
        return Err(unknown(config, &name, &names));
    }
    match goal {
        Some(_) => Ok(()),
        None => Err(TrainError::Setup(format!(
            "checkpoint.best: write min:{name} or max:{name}, as the name does not tell which is better"
        ))),
    }
}

/// Refuses a range test of networks against each other: their losses do not tell which learning rate is good.
///
/// # Errors
/// [`TrainError::Setup`] with the phases.
pub(in crate::engine) fn check_range_test(
    config: &Config,
    training: &dyn AnyTraining,
) -> Result<(), TrainError> {
    let phases: Vec<&str> = training.phases().iter().map(|phase| phase.name.as_str()).collect();
    match config.schedule.kind == ScheduleKind::RangeTest && phases != [""] {
        true => Err(TrainError::Setup(format!(
            "schedule.kind = range-test is for a training of one loss; this one has {}, whose losses move each other",
            phases.join(", ")
        ))),
        false => Ok(()),
    }
}

fn test_names(outline: &TrainingOutline) -> Vec<String> {
    outline.names().iter().map(|name| format!("test_{name}")).collect()
}

/// The error of a measure that does not exist.
fn unknown(config: &Config, name: &str, names: &[String]) -> TrainError {
    let key = if config.checkpoint.best.is_empty() { "train.patience" } else { "checkpoint.best" };
    let known = match names {
        [] => "the training has no evaluation".to_owned(),
        names => format!("the evaluation has {}", names.join(", ")),
    };
    let near = nearest(name, names.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
    TrainError::Setup(format!("{key}: there is no measure `{name}`{near}; {known}"))
}

impl Selection {
    /// Creates the comparison of a run that has evaluated nothing.
    pub(super) fn new(env: &Environment<'_>, training: &dyn AnyTraining) -> Self {
        let config = env.config;
        let measure = config.best_measure();
        let names = test_names(&training.outline());
        let is_judged = measure.as_ref().is_some_and(|measure| !names.contains(&measure.name));
        let period = if is_judged { config.quality.every } else { env.eval_period() };
        Self {
            measure,
            schedule: EvaluationSchedule { period, horizon: env.plan.horizon },
            keeps_best: !config.checkpoint.best.is_empty(),
            patience: config.train.patience,
            planned_stop: env.plan.stop,
            record: SelectionRecord::default(),
        }
    }

    /// The last step of a run that has done `step` steps: this one, if too many evaluations did not improve.
    pub(super) fn stop(&self, step: u64) -> u64 {
        if self.is_exhausted() { step.min(self.planned_stop) } else { self.planned_stop }
    }

    /// True if too many evaluations did not improve.
    pub(super) fn is_exhausted(&self) -> bool {
        self.patience > 0 && self.record.stale >= self.patience
    }

    /// True if the run ended before its planned end.
    pub(super) fn has_ended_early(&self, step: u64) -> bool {
        self.is_exhausted() && step < self.planned_stop
    }

    /// The best evaluation so far.
    pub(super) fn best(&self) -> Option<&BestEvaluation> {
        self.record.best.as_ref()
    }

    /// True if the evaluation of a step is the best so far.
    pub(super) fn is_best(&self, step: u64) -> bool {
        self.best().is_some_and(|best| best.step == step)
    }

    /// True if the checkpoint of a step is to be kept as the best.
    pub(super) fn keeps(&self, step: u64) -> bool {
        self.keeps_best && self.is_best(step)
    }

    /// The rule for old checkpoints.
    pub(super) fn retention(&self, keep: usize) -> Retention {
        Retention { keep, best: self.record.best.clone().filter(|_| self.keeps_best) }
    }

    /// Compares the measures of an evaluation with the best so far, on rank 0, and gives the result to all ranks. Does nothing if there are no
    /// measures, or if the evaluation of the step was compared before. All ranks call this together.
    pub(super) fn update(
        &mut self,
        step: u64,
        measures: &[(String, f64)],
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        let Some(measure) = &self.measure else { return Ok(()) };
        let bare = measure.name.strip_prefix("test_").unwrap_or(&measure.name);
        let value = measures.iter().find(|(name, _)| name == bare).filter(|_| self.schedule.has(step));
        if let Some((_, value)) = value {
            self.record.add(measure, step, *value);
        }
        self.share(distributed)
    }

    /// Checks, after an evaluation with all measures, that it had the one that is compared.
    pub(super) fn check(&self, config: &Config, measures: &[(String, f64)]) -> Result<(), TrainError> {
        let Some(measure) = &self.measure else { return Ok(()) };
        let names: Vec<String> = measures.iter().map(|(name, _)| format!("test_{name}")).collect();
        // A server measures nothing.
        match names.is_empty() || names.contains(&measure.name) {
            true => Ok(()),
            false => Err(unknown(config, &measure.name, &names)),
        }
    }

    /// Takes over the record of rank 0, which alone sees the measures under every strategy. All ranks call this together.
    fn share(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        let all = self.gather(distributed)?;
        if let Some(first) = all.into_iter().next() {
            self.record = first;
        }
        Ok(())
    }

    /// Takes over the newest record of all ranks of a new world. All ranks call this together.
    pub(super) fn share_newest(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        if self.measure.is_none() {
            return Ok(());
        }
        let all = self.gather(distributed)?;
        // Of equally new ones the first rank's.
        let newest = all.into_iter().reduce(|best, more| match more.evaluated > best.evaluated {
            true => more,
            false => best,
        });
        self.record = newest.unwrap_or_default();
        Ok(())
    }

    fn gather(&self, distributed: &Distributed) -> Result<Vec<SelectionRecord>, TrainError> {
        let malformed = |error: serde_json::Error| {
            TrainError::Setup(format!("malformed evaluations of another rank: {error}"))
        };
        let own = serde_json::to_string(&self.record).map_err(malformed)?;
        let all = distributed.exchange().gather_text(&own)?;
        all.iter().map(|text| serde_json::from_str(text).map_err(malformed)).collect()
    }

    /// Adds the record to the index of a checkpoint.
    pub(super) fn save(&self, index: &mut Map<String, Value>) {
        if let (Some(_), Ok(record)) = (&self.measure, serde_json::to_value(&self.record)) {
            index.insert(ENTRY.to_owned(), record);
        }
    }

    /// Restores the record of a checkpoint. Adds evaluations up to its step that are only in the metrics, whose lines rank 0 has: the last
    /// step of a run is saved before its evaluation, and a run may begin to compare when it is resumed. All ranks call this together.
    pub(super) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        lines: &[Line],
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        let Some(measure) = &self.measure else { return Ok(()) };
        let saved = checkpoint.state().get(ENTRY);
        let saved: Option<SelectionRecord> =
            saved.and_then(|record| serde_json::from_value(record.clone()).ok());
        let is_same =
            |record: &SelectionRecord| record.best.as_ref().is_none_or(|best| best.measure == measure.name);
        self.record = saved.filter(is_same).unwrap_or_default();
        let counts = |line: &&Line| line.step() <= checkpoint.step() && self.schedule.has(line.step());
        for line in lines.iter().filter(counts) {
            // One that is not finite has no number.
            let is_null = line.not_finite().any(|name| name == measure.name);
            if let Some(value) = line.number(&measure.name).or(is_null.then_some(f64::NAN)) {
                self.record.add(measure, line.step(), value);
            }
        }
        self.share(distributed)
    }

    /// Describes the end of a run that has not improved.
    pub(super) fn reason(&self) -> String {
        let name = self.measure.as_ref().map_or("", |measure| measure.name.as_str());
        let best = match self.best() {
            Some(best) => format!("{} at step {}", phalanx_run::format::number(best.value), best.step),
            None => "none".to_owned(),
        };
        format!("no better {name} in {} evaluations (train.patience); the best is {best}", self.record.stale)
    }
}

impl SelectionRecord {
    /// Compares a value with the best so far. A value that is not finite is not better.
    fn add(&mut self, measure: &BestMeasure, step: u64, value: f64) {
        if step <= self.evaluated {
            return;
        }
        self.evaluated = step;
        let is_better = self.best.as_ref().is_none_or(|best| measure.is_better(value, best.value));
        if value.is_finite() && is_better {
            self.best = Some(BestEvaluation { measure: measure.name.clone(), step, value });
            self.stale = 0;
        } else {
            self.stale += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_config::Goal;

    #[test]
    fn an_evaluation_counts_once_and_only_better_ones_are_the_best() {
        let goal = Some(Goal::Max);
        let measure = BestMeasure { name: "test_accuracy".to_owned(), goal };
        let mut record = SelectionRecord::default();
        for (step, value, best, stale) in [
            (10, f64::NAN, None, 1),
            (20, 0.5, Some(20), 0),
            // Repeated after a rank was lost.
            (20, 0.75, Some(20), 0),
            (30, 0.5, Some(20), 1),
            (40, f64::INFINITY, Some(20), 2),
            (50, 0.625, Some(50), 0),
            (60, 0.25, Some(50), 1),
        ] {
            record.add(&measure, step, value);
            assert_eq!((record.best.as_ref().map(|best| best.step), record.stale), (best, stale), "{step}");
        }
        let text = serde_json::to_string(&record).expect("finite");
        assert_eq!(serde_json::from_str::<SelectionRecord>(&text).expect("its own"), record);
    }
}
