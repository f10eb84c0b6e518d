//! What is done between steps: lines of metrics, evaluation, samples, checkpoints.

use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_sharding::SyncStats;
use phalanx_tensor::Session;
use serde_json::{Map, Value};

use super::elastic::Elastic;
use super::{Run, account};
use crate::engine::checkpoint::Saved;
use crate::engine::device::Gauge;
use crate::engine::distributed::Network;
use crate::engine::inference::{draw, draw_restored, evaluate};
use crate::engine::observer::named;
use crate::engine::training::Drawing;
use crate::engine::{Event, Observer, StepReport, TrainError};
use phalanx_run::write_aside;
use phalanx_run::{
    EventFile, Line, MetricsWriter, RunError, RunFolder, curves_svg, host_name, read_metrics, synchrony_svg,
};

impl Run<'_> {
    /// Writes the line of a step, with the rates since the last one, what was evaluated after it, and what has collapsed in it.
    pub(super) fn log(
        &mut self,
        report: StepReport,
        evaluated: Vec<(String, f64)>,
        collapsed: Vec<String>,
        metrics: &mut MetricsWriter,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let window = self.meter.take_window();
        let report = StepReport {
            images_per_second: window.rate(),
            data_share: window.share(window.data),
            communication_share: self.place.is_host().then(|| window.share(window.communication)),
            ..report
        };
        for phase in &report.phases {
            self.last.insert(named(&phase.name, "loss"), Value::from(phase.loss));
        }
        let mut line = line(&report);
        for (name, value) in &evaluated {
            line = line.with(&format!("test_{name}"), *value);
            self.last.insert(format!("test_{name}"), Value::from(*value));
        }
        for (name, value) in self.gauge.as_deref().map(Gauge::look).unwrap_or_default() {
            line = line.with(name, value);
            self.last.insert(name.to_owned(), Value::from(value));
        }
        if let Some(stats) = self.state.sync_stats() {
            line = with_synchrony(line, &stats);
        }
        if !self.dead.is_empty() {
            line = line.with("workers", self.distributed.data_size() as u64);
            line = line.with("dead", self.dead.iter().map(|dead| dead.rank as u64).collect::<Vec<_>>());
        }
        if let Some(seconds) = self.elastic.as_mut().and_then(Elastic::take_recovered) {
            line = line.with("recovery_seconds", seconds);
        }
        if !collapsed.is_empty() {
            line = line.with("warnings", collapsed);
        }
        metrics.write(&line)?;
        self.losses.say_written(&self.distributed, report.step);
        self.write_events(&line)?;
        observer.step(&report, true);
        if !evaluated.is_empty() {
            observer.event(&Event::Evaluated { step: report.step, measures: evaluated });
        }
        Ok(())
    }

    /// Writes a line of metrics for TensorBoard, if that is wanted: the first one of this process into a file of its own.
    fn write_events(&mut self, line: &Line) -> Result<(), TrainError> {
        if !self.config.log.tensorboard {
            return Ok(());
        }
        if self.events.is_none() {
            let path = self.folder.config();
            let config = std::fs::read_to_string(&path).map_err(RunError::io("read", &path))?;
            self.events = Some(EventFile::create(self.folder.path(), &host_name(), line.step(), &config)?);
        }
        if let Some(events) = &mut self.events {
            events.scalars(line)?;
        }
        Ok(())
    }

    /// What is done between steps: samples, by rank 0, to which the others give their parts, and checkpoints.
    pub(super) fn after_step(
        &mut self,
        step: u64,
        last: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (sample, checkpoint) = (&self.config.sample, &self.config.checkpoint);
        if self.plan.is_due(sample.every, step, last) {
            let path = self.samples_of(step);
            let span = tracing::trace_span!(target: "phalanx_trace::evaluation", "draw samples");
            if span.in_scope(|| draw_for_run(self, &path))? {
                if let Some(events) = &mut self.events {
                    events.image(step, "samples", &path)?;
                }
                observer.event(&Event::Sampled { step, path });
            }
        }
        if self.plan.is_due(checkpoint.every, step, last) {
            self.save(step, observer)?;
        }
        Ok(())
    }

    /// The picture of samples after a step.
    pub(super) fn samples_of(&self, step: u64) -> PathBuf {
        self.folder.samples().join(format!("step-{step:08}.png"))
    }

    /// Begins to save what there is after step `step`, if checkpoints are wanted.
    pub(super) fn save(&mut self, step: u64, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let config = self.config;
        if !config.checkpoint.enabled {
            return Ok(());
        }
        let mut saved = Map::from_iter([
            ("images".to_owned(), Value::from(step * self.plan.global_batch as u64)),
            ("epoch".to_owned(), Value::from(self.plan.place(step).0)),
            ("model".to_owned(), Value::from(config.model.kind.as_str())),
            ("seed".to_owned(), Value::from(config.train.seed)),
        ]);
        let _saving = tracing::trace_span!(target: "phalanx_trace::saving", "begin a checkpoint").entered();
        let (state, distributed, wanted) = (&self.state, &self.distributed, self.broken.is_none());
        let parts = || {
            let parts = state.parts(distributed, &mut saved)?;
            distributed.check()?;
            Ok((parts, saved))
        };
        for saved in self.saver.begin(&self.distributed, step, wanted, parts)? {
            tell_saved(observer, saved);
        }
        Ok(())
    }

    /// Waits until the checkpoint that is being written is complete.
    pub(super) fn settle(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let span = tracing::trace_span!(target: "phalanx_trace::saving", "wait for the checkpoint");
        if let Some(saved) = span.in_scope(|| self.saver.settle(&self.distributed))? {
            tell_saved(observer, saved);
        }
        self.last.insert("save_seconds".to_owned(), Value::from(self.saver.stalled().as_secs_f64()));
        Ok(())
    }

    /// What the run has come to; `None` on ranks other than 0.
    pub(super) fn summary(
        &mut self,
        interrupted: bool,
        wall: Duration,
    ) -> Result<Option<phalanx_run::Summary>, TrainError> {
        let (ranks, energy) = account::gather(self)?;
        if !self.is_first() {
            return Ok(None);
        }
        let losses = self.state.training.phases().into_iter().map(|phase| named(&phase.name, "loss"));
        let losses = losses.chain(self.state.training.evaluated().first().map(|name| format!("test_{name}")));
        let peaks = self.gauge.as_deref().map(Gauge::peaks).unwrap_or_default();
        self.last.extend(peaks.into_iter().map(|(name, bytes)| (name, Value::from(bytes))));
        draw_curves(self.folder, &losses.collect::<Vec<_>>())?;
        let title = self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(svg) = synchrony_svg(&title, &ranks) {
            let path = self.folder.synchrony();
            write_aside(&path, svg.as_bytes()).map_err(RunError::io("write", &path))?;
        }
        Ok(Some(account::summary(self, ranks, energy, (interrupted, wall))))
    }
}

/// The line of `metrics.jsonl` for a step.
fn line(report: &StepReport) -> Line {
    let mut line = Line::new(report.step);
    for phase in &report.phases {
        line = line.with(&named(&phase.name, "loss"), phase.loss);
    }
    line = line.with("epoch", report.epoch as u64);
    for phase in &report.phases {
        for (name, value) in &phase.measures {
            line = line.with(&named(&phase.name, name), *value);
        }
    }
    for update in &report.updates {
        line = line.with(&named(&update.network, "lr"), update.learning_rate);
        if let Some(norm) = update.gradient_norm {
            line = line.with(&named(&update.network, "grad_norm"), norm);
        }
        if let Some(scale) = update.loss_scale {
            line = line.with(&named(&update.network, "loss_scale"), scale);
            line = line.with(&named(&update.network, "left_out"), u64::from(update.left_out));
        }
    }
    line = line
        .with("seconds", report.seconds)
        .with("images_per_s", report.images_per_second)
        .with("memory_bytes", report.memory_bytes)
        .with("data_share", report.data_share);
    match report.communication_share {
        Some(share) => line.with("communication_share", share),
        None => line,
    }
}

/// Adds how rank 0 keeps step with the others, so far.
fn with_synchrony(line: Line, stats: &SyncStats) -> Line {
    let mut line = line.with("waited_seconds", stats.waited.as_secs_f64()).with("meetings", stats.meetings);
    if stats.staleness.total() > 0 {
        line = line
            .with("staleness_mean", stats.staleness.mean())
            .with("staleness_max", stats.staleness.max())
            .with("clock_spread", stats.spread);
    }
    match stats.consensus_distance {
        Some(distance) => line.with("consensus_distance", distance),
        None => line,
    }
}

/// Draws losses over the steps.
fn draw_curves(folder: &RunFolder, losses: &[String]) -> Result<(), TrainError> {
    let lines = read_metrics(&folder.metrics())?;
    let title = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let losses: Vec<&str> = losses.iter().map(String::as_str).collect();
    let svg = curves_svg(&title, &lines, &losses);
    let path = folder.curves();
    write_aside(&path, svg.as_bytes()).map_err(RunError::io("write", &path))?;
    Ok(())
}

/// Tells that a checkpoint is complete.
pub(super) fn tell_saved(observer: &mut dyn Observer, saved: Saved) {
    let Saved { step, path, stalled } = saved;
    observer.event(&Event::Saved { step, path, stalled });
}

/// Evaluates the averaged weights, or the weights, on the test split, each rank its share.
pub(super) fn evaluate_run(run: &mut Run<'_>) -> Result<Vec<(String, f64)>, TrainError> {
    let eval = &run.config.eval;
    let share = run.config.train.global_batch.div_ceil(run.distributed.data_size());
    let batch = if eval.batch > 0 { eval.batch } else { share };
    run.state.networks().try_for_each(Network::broadcast_buffers)?;
    let (data, distributed, context) = (&run.data, &run.distributed, run.context.clone());
    let (precision, device) = (run.config.train.precision, run.place.clone());
    let session = Session { precision, device, ..Session::evaluation(context) };
    let (listener, step) = (run.state.listener(), run.state.step);
    let groups = run.state.networks().next().map(Network::batch_groups).unwrap_or_default();
    let session = Session { listener, ..session };
    run.state.with_averages_by_block(|training| {
        evaluate(training, data, distributed, &groups, &session, eval.limit, batch, step)
    })
}

/// Has the judges look at what is drawn with the averaged weights, or the weights; nothing if there are none.
pub(super) fn judge_run(run: &mut Run<'_>) -> Result<Vec<(String, f64)>, TrainError> {
    let Some(quality) = &mut run.quality else { return Ok(Vec::new()) };
    run.state.networks().try_for_each(Network::broadcast_buffers)?;
    let (precision, device) = (run.config.train.precision, run.place.clone());
    let listener = run.state.listener();
    let session = Session { precision, device, listener, ..Session::evaluation(run.context.clone()) };
    let (data, distributed, config) = (&run.data, &run.distributed, run.config);
    run.state.with_averages(|training| quality.measure(training, data, distributed, &session, config))
}

/// Draws the configured prompts, or captions of the test split, and writes them beside the picture, a line each, in
/// the order of the pictures. False if the task draws nothing, and on ranks other than 0, which only give it their parts of
/// the parameters.
fn draw_for_run(run: &mut Run<'_>, path: &Path) -> Result<bool, TrainError> {
    if !run.state.training.draws() {
        // Otherwise all ranks would gather all parameters for nothing.
        return Ok(false);
    }
    let sample = &run.config.sample;
    let restores = run.state.training.restores();
    let prompts = match sample.prompts.is_empty() {
        _ if restores => Vec::new(),
        true => run.data.test_captions(sample.rows)?,
        false => sample.prompts.clone(),
    };
    let (precision, device) = (run.config.train.precision, run.place.clone());
    let listener = run.state.listener();
    let session = Session { precision, device, listener, ..Session::evaluation(run.context.clone()) };
    let seed = run.config.train.seed;
    let (drawing, size) = (Drawing::samples(&prompts, sample.columns), run.config.model.image_size);
    let distributed = &run.distributed;
    let data = &run.data;
    let shown = run.state.with_averages(|training| match distributed.rank() {
        0 if restores => {
            let batch = data.test_samples(sample.rows, 0..sample.rows)?;
            draw_restored(training, session.clone(), batch.tensor("images")?, size, path)
        }
        0 => draw(training, session.clone(), seed, &drawing, size, path),
        _ => Ok(false),
    })?;
    if shown && !restores {
        let list = path.with_file_name("prompts.txt");
        let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
        write_aside(&list, lines.as_bytes()).map_err(RunError::io("write", &list))?;
    }
    Ok(shown)
}
