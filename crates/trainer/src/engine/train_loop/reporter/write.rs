//! Writes reports: lines of metrics, events for TensorBoard, and the observer.

use std::collections::BTreeSet;

use phalanx_run::{EventFile, Line, RunError, host_name, read_whole_metrics};
use serde_json::Value;

use super::hyperparameters::hyperparameters;
use super::pending::CompleteReport;
use super::{Reporter, RunView, line};
use crate::engine::distributed::Distributed;
use crate::engine::observer::{Event, named};
use crate::engine::train_loop::environment::Environment;
use crate::engine::train_loop::sample_kind::SampleKind;
use crate::engine::train_loop::state::TrainState;
use crate::engine::{StepReport, TrainError};

impl Reporter {
    /// Tells the observer of a step. Writes its line if it is due, something was evaluated, or there is a warning. After a loss
    /// that is not finite, nothing is written: the run ends with that error.
    pub(super) fn write(
        &mut self,
        complete: CompleteReport,
        mut evaluated: Vec<(String, f64)>,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        if self.broken.is_some() {
            return Ok(());
        }
        let CompleteReport { report, is_logged } = complete;
        let before = self.evaluated.take_if(|evaluation| evaluation.step == report.step);
        if evaluated.is_empty() {
            evaluated = before.map(|evaluation| evaluation.measures).unwrap_or_default();
        }
        let (step, mut warnings) = (report.step, self.watch.check(&report));
        warnings.iter().for_each(|problem| tracing::warn!("step {step}: {problem}"));
        // The log has these already.
        warnings.extend(view.env.notices.take());
        for problem in &warnings {
            self.event(&Event::Warned { step, problem: problem.clone() });
        }
        let last = self.lines.as_ref().and_then(|lines| lines.last()).map(Line::step);
        if last == Some(report.step) {
            // A rank was lost between the line of the step and the rest that follows it, which is repeated.
            return self.amend(report.step, evaluated, view);
        }
        if self.lines.is_some() && (is_logged || !evaluated.is_empty() || !warnings.is_empty()) {
            return self.log(CompleteReport { report, is_logged }, evaluated, warnings, view);
        }
        self.observer.step(&report, false);
        Ok(())
    }

    /// Writes the line of a step, with the rates since the last one.
    fn log(
        &mut self,
        CompleteReport { report, is_logged }: CompleteReport,
        evaluated: Vec<(String, f64)>,
        warnings: Vec<String>,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        let window = self.meter.take_window();
        // Training has taken as long as the slowest rank says, and it does not become shorter when that rank is lost.
        let before =
            self.lines.as_ref().and_then(|lines| lines.last()).and_then(|line| line.number("seconds"));
        let report = StepReport {
            seconds: report.seconds.max(before.unwrap_or_default()),
            samples_per_second: window.rate(),
            units: window.unit_rate(view.state.training.outline().weight_unit),
            arithmetic: window.arithmetic_rate(view.env.peak()),
            data_share: window.share(window.data),
            communication_share: view.env.device.is_host().then(|| window.share(window.communication)),
            ..report
        };
        let gpu = self.resources.gpu_values();
        let line = line::line(&report, &evaluated, &gpu);
        let line = line::with_world(line, view.state.sync_stats(), view.distributed, view.changes);
        let line = if warnings.is_empty() { line } else { line.with("warnings", warnings) };
        self.remember(&report, &evaluated, gpu);
        if let Some(lines) = &mut self.lines {
            lines.write(&line)?;
        }
        self.losses.announce_written(view.distributed, report.step);
        self.write_events(&line, view.env)?;
        self.observer.step(&report, is_logged);
        if !evaluated.is_empty() {
            let (step, is_best) = (report.step, view.selection.is_best(report.step));
            self.event(&Event::Evaluated { step, measures: evaluated, is_best });
        }
        Ok(())
    }

    /// Adds the measures of an evaluation to the line of a step that was written without them: a resumed run completes its last step.
    pub(super) fn amend(
        &mut self,
        step: u64,
        evaluated: Vec<(String, f64)>,
        view: &mut RunView<'_, '_>,
    ) -> Result<(), TrainError> {
        let Some(lines) = self.lines.as_mut().filter(|_| !evaluated.is_empty()) else { return Ok(()) };
        let last = lines.last().filter(|line| line.step() == step).cloned();
        let line = last.unwrap_or_else(|| Line::new(step).with("seconds", self.meter.seconds_before()));
        let line =
            evaluated.iter().fold(line, |line, (name, value)| line.with(&format!("test_{name}"), *value));
        lines.amend(&line)?;
        self.remember(&StepReport::default(), &evaluated, Vec::new());
        self.write_events(&line, view.env)?;
        let is_best = view.selection.is_best(step);
        self.event(&Event::Evaluated { step, measures: evaluated, is_best });
        Ok(())
    }

    /// Keeps the values of a line for the summary.
    fn remember(&mut self, report: &StepReport, evaluated: &[(String, f64)], gpu: Vec<(&'static str, f64)>) {
        let losses = report.phases.iter().map(|phase| (named(&phase.name, "loss"), phase.loss));
        let tests = evaluated.iter().map(|(name, value)| (format!("test_{name}"), *value));
        let gpu = gpu.into_iter().map(|(name, value)| (name.to_owned(), value));
        self.last.extend(losses.chain(tests).chain(gpu).map(|(name, value)| (name, Value::from(value))));
    }

    /// Writes a line for TensorBoard, if that is wanted: the first line of this process into a file of its own.
    fn write_events(&mut self, line: &Line, env: &Environment<'_>) -> Result<(), TrainError> {
        if !env.config.log.tensorboard {
            return Ok(());
        }
        if self.tensorboard.is_none() {
            let path = env.folder.config();
            let config = std::fs::read_to_string(&path).map_err(RunError::io("read", &path))?;
            let mut events = EventFile::create(env.folder.path(), &host_name(), line.step(), &config)?;
            events.hyperparameters(line.step(), &hyperparameters(env.config))?;
            self.tensorboard = Some(events);
        }
        if let Some(events) = &mut self.tensorboard {
            events.scalars(line)?;
        }
        Ok(())
    }

    /// Reports samples that were written after a step.
    pub(in crate::engine::train_loop) fn report_samples(
        &mut self,
        step: u64,
        kind: SampleKind,
        env: &Environment<'_>,
    ) -> Result<(), TrainError> {
        let path = env.samples_path(step, kind);
        if let (Some(events), SampleKind::Pictures(_)) = (&mut self.tensorboard, kind) {
            events.image(step, "samples", &path)?;
        }
        self.event(&Event::Sampled { step, path });
        Ok(())
    }

    /// Reports the codec verdicts on rank 0, once they are decided.
    pub(in crate::engine::train_loop) fn report_codec_verdicts(
        &mut self,
        distributed: &Distributed,
        state: &TrainState,
    ) -> Result<(), TrainError> {
        if distributed.rank() > 0 {
            return Ok(());
        }
        for network in state.networks().filter(|network| network.is_learnt()) {
            for verdict in network.parallel()?.codec_verdicts() {
                let name = network.name();
                let text = if name.is_empty() { verdict.to_string() } else { format!("{name}: {verdict}") };
                tracing::info!("{text}");
                self.note(text);
            }
        }
        Ok(())
    }

    /// Reads the last losses and measures that are written up to a step, for the summary.
    pub(in crate::engine::train_loop) fn read_last(
        &mut self,
        env: &Environment<'_>,
        state: &TrainState,
    ) -> Result<(), TrainError> {
        let losses = state.training.phases().into_iter().map(|phase| named(&phase.name, "loss"));
        let losses: BTreeSet<String> = losses.collect();
        for line in lines_until(env, state.step)? {
            for (name, value) in line.numbers() {
                if losses.contains(name) || name.starts_with("test_") {
                    self.last.insert(name.to_owned(), value.into());
                }
            }
        }
        Ok(())
    }
}

/// Returns the last step up to `step` that has a line of metrics; 0 if there is none.
pub(in crate::engine::train_loop) fn last_written(
    env: &Environment<'_>,
    step: u64,
) -> Result<u64, TrainError> {
    Ok(lines_until(env, step)?.last().map_or(0, Line::step))
}

/// Returns the last step whose line has measures of an evaluation, all of which are finite; 0 if there is none.
pub(in crate::engine::train_loop) fn last_evaluated(env: &Environment<'_>) -> Result<u64, TrainError> {
    let lines = lines_until(env, u64::MAX)?;
    let is_test = |name: &str| name.starts_with("test_");
    let is_evaluated =
        |line: &&Line| line.numbers().any(|(name, _)| is_test(name)) && !line.not_finite().any(is_test);
    Ok(lines.iter().rfind(is_evaluated).map_or(0, Line::step))
}

/// Reads the lines of metrics of steps up to `step`.
pub(in crate::engine::train_loop) fn lines_until(
    env: &Environment<'_>,
    step: u64,
) -> Result<Vec<Line>, TrainError> {
    let path = env.folder.metrics();
    let mut lines = if path.exists() { read_whole_metrics(&path)? } else { Vec::new() };
    lines.retain(|line| line.step() <= step);
    Ok(lines)
}
