//! The training loop of one rank.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_tensor::loss::Over;
use phalanx_tensor::{Context, Key, Recompute, Session, Tape, TensorError};
use serde_json::{Map, Value};

use super::data::{Data, Feed};
use super::learner::Learner;
use super::meter::{Meter, Spent, timed};
use super::peers::Peers;
use super::{
    Event, Observer, Plan, Started, StepReport, TrainError, World, account, evaluate, samples, tasks,
};
use crate::config::{Config, Resolved};
use crate::launch::StopFlag;
use crate::run::checkpoint::Checkpoint;
use crate::run::{Line, MetricsWriter, RunFolder, curves_svg, read_metrics, resident_memory};

/// Trains as one rank of `world`, going on from the newest complete checkpoint in `folder` if there is one, until
/// the configured step or until `stop` is raised on any rank.
///
/// # Errors
/// See [`TrainError`]; a failing rank makes the other ranks fail with an error for which
/// [`TrainError::is_consequence`] holds.
pub fn train(
    folder: &RunFolder,
    resolved: &Resolved,
    world: &World,
    stop: &StopFlag,
    mut observer: Box<dyn Observer>,
) -> Result<(), TrainError> {
    let start = Instant::now();
    let config = &resolved.config;
    let context =
        Arc::new(Context::from_env(world.threads(config.train.threads)).map_err(TensorError::from)?);
    let mut peers = Peers::connect(world, &folder.logs())?;
    let trained = train_among(&mut peers, folder, config, context, stop, start, observer.as_mut());
    match &trained {
        Ok(()) => peers.finish()?,
        Err(error) if error.is_consequence() => {}
        Err(error) => peers.abort(&error.to_string()),
    }
    trained
}

/// Trains with ranks that have met.
fn train_among(
    peers: &mut Peers,
    folder: &RunFolder,
    config: &Config,
    context: Arc<Context>,
    stop: &StopFlag,
    start: Instant,
    observer: &mut dyn Observer,
) -> Result<(), TrainError> {
    let mut run = Run::new(folder, config, peers, context)?;
    run.resume(observer)?;
    if run.learner.step >= run.plan.stop {
        let (step, stop) = (run.learner.step, run.plan.stop);
        observer.event(&Event::Note(format!("nothing to do: {step} of {stop} steps are done; see --steps")));
        return Ok(());
    }
    observer.started(&run.started());
    let interrupted = run.steps(stop, observer)?;
    let summary = run.summary(interrupted, start.elapsed())?;
    if let Some(summary) = summary {
        summary.write(&folder.summary())?;
        if interrupted {
            let path = folder.path().display();
            observer.event(&Event::Note(format!(
                "interrupted after step {}; continue with: phalanx train --resume --out {path}",
                summary.step
            )));
        }
        observer.finished(&summary);
    }
    Ok(())
}

/// One rank of a run.
pub(super) struct Run<'a> {
    pub(super) folder: &'a RunFolder,
    pub(super) config: &'a Config,
    pub(super) data: Data,
    pub(super) peers: &'a Peers,
    pub(super) plan: Plan,
    pub(super) learner: Learner,
    pub(super) context: Arc<Context>,
    pub(super) meter: Meter,
    key: Key,
    /// The last line and the last evaluation, for the summary.
    pub(super) last: Map<String, Value>,
}

impl<'a> Run<'a> {
    fn new(
        folder: &'a RunFolder,
        config: &'a Config,
        peers: &'a mut Peers,
        context: Arc<Context>,
    ) -> Result<Self, TrainError> {
        let data = Data::open(config)?;
        let (images, batch) = (data.train_len(), config.train.global_batch);
        let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
        let key = Key::new(config.train.seed);
        let task = tasks::build(config, &data, key, !peers.is_shared())?;
        peers.share(config, task.store())?;
        let learner = Learner::new(config, task, &plan, context.clone())?;
        let (meter, last) = (Meter::default(), Map::new());
        Ok(Self { folder, config, data, peers, plan, learner, context, meter, key, last })
    }

    fn is_first(&self) -> bool {
        self.peers.rank() == 0
    }

    /// Goes on from the newest checkpoint, if there is one, and has all ranks agree on which.
    fn resume(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (newest, damaged) = Checkpoint::newest(&self.folder.checkpoints());
        for error in damaged {
            observer.event(&Event::Note(format!("{error}; an older checkpoint is used")));
        }
        let found = newest.as_ref().map_or(0, Checkpoint::step);
        let sum = self.peers.sum_of(found as f64)?;
        if sum != found as f64 * self.peers.size() as f64 {
            let folder = self.folder.path().display().to_string();
            return Err(TrainError::Disagree { rank: self.peers.rank(), found, folder });
        }
        if let Some(checkpoint) = newest {
            self.learner.load(self.peers, &checkpoint)?;
            let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
            observer.event(&Event::Resumed { step, path });
        }
        self.peers.broadcast_state(self.learner.task.store())
    }

    fn started(&self) -> Started {
        let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Started {
            name,
            folder: self.folder.path().to_owned(),
            model: self.learner.task.describe(),
            parameters: self.learner.task.store().num_parameters() as u64,
            data: self.data.describe(),
            images: self.plan.images,
            world_size: self.peers.size(),
            threads: self.context.threads(),
            strategy: self.config.train.strategy.to_string(),
            done: self.learner.step,
            total: self.plan.stop,
            steps_per_epoch: self.plan.steps_per_epoch,
        }
    }

    /// Trains to the end of the plan, or until a stop is asked for. True if it was.
    fn steps(&mut self, stop: &StopFlag, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let mut metrics = match self.is_first() {
            true => Some(MetricsWriter::open(&self.folder.metrics(), self.learner.step)?),
            false => None,
        };
        let mut feed = self.data.feed(self.config, &self.plan, self.peers, self.learner.step)?;
        let mut interrupted = false;
        while self.learner.step < self.plan.stop && !interrupted {
            let (report, stopped) = self.step(&mut feed, stop)?;
            interrupted = stopped;
            let step = report.step;
            let last = step == self.plan.stop;
            // Whoever interrupts wants the checkpoint and nothing else.
            let eval = &self.config.eval;
            let evaluated = match !interrupted && eval.enabled && self.plan.is_due(eval.every, step, last) {
                true => Some(evaluate::run(self)?),
                false => None,
            };
            let due = step == 1 || self.plan.is_due(self.config.log.every, step, last || interrupted);
            match metrics.as_mut() {
                Some(metrics) if due || evaluated.is_some() => {
                    self.log(report, evaluated, metrics, observer)?;
                }
                _ => observer.step(&report, false),
            }
            self.after_step(step, last, interrupted, observer)?;
        }
        Ok(interrupted)
    }

    /// One step: its report without rates, and whether any rank was asked to stop.
    fn step(&mut self, feed: &mut Feed, stop: &StopFlag) -> Result<(StepReport, bool), TrainError> {
        let begun = Instant::now();
        let before = self.peers.traffic();
        let mut spent = Spent::default();
        let step = self.learner.step;
        let task = &self.learner.task;
        task.store().zero_grads();
        let share = timed(&mut spent.data, || feed.next())?;
        // The loss, the task's measures, and the requests to stop, summed over micro-batches and then ranks.
        let mut sums = vec![0.0; 2 + task.measures().len()];
        let last = share.pieces.len().saturating_sub(1);
        // The last batch of an epoch may leave ranks with different numbers of micro-batches, or none; they then cannot
        // gather parameters block by block together.
        if share.global != self.plan.global_batch {
            self.peers.summon()?;
        }
        for (index, (offset, batch)) in share.pieces.iter().enumerate() {
            let session = Session {
                context: self.context.clone(),
                training: true,
                key: self.key.stream("train").step(step),
                sample_offset: *offset,
                listener: self.peers.listener(),
                stats_sync: self.peers.stats_sync(),
                recompute: Recompute::Never,
            };
            // Gradients travel once they are complete, with the last micro-batch.
            self.peers.accumulate(index != last);
            let tape = Tape::recording(session);
            let outcome = task.loss(&tape, batch, Over::Count(share.global), step)?;
            sums[0] += f64::from(outcome.loss.tensor()?.to_scalar::<f32>()?);
            for (sum, measure) in sums[1..].iter_mut().zip(&outcome.measures) {
                *sum += measure;
            }
            tape.backward(&outcome.loss)?;
        }
        self.peers.accumulate(false);
        if share.global != self.plan.global_batch {
            self.peers.dismiss()?;
        }
        let stops = sums.len() - 1;
        sums[stops] = f64::from(u8::from(stop.is_raised()));
        self.peers.finish_gradients()?;
        self.peers.sum(&mut sums)?;
        let loss = sums[0];
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { step: step + 1, loss, elsewhere: !self.is_first() });
        }
        let measures =
            task.measures().iter().map(|name| (*name).to_owned()).zip(sums[1..stops].to_vec()).collect();
        let learning_rate = self.learner.learning_rate();
        let gradient_norm = self.learner.update(self.peers)?;
        spent.steps = begun.elapsed();
        // The communicator counts all waiting, also that of batch norms in the middle of the model.
        let traffic = self.peers.traffic();
        spent.communication = traffic.exposed.saturating_sub(before.exposed);
        spent.busy = traffic.busy.saturating_sub(before.busy);
        spent.sent = traffic.bytes_sent.saturating_sub(before.bytes_sent);
        spent.images = share.global;
        self.meter.add(&spent);
        let report = StepReport {
            step: step + 1,
            total: self.plan.stop,
            epoch: self.plan.place(step).0,
            loss,
            measures,
            learning_rate,
            gradient_norm,
            images_per_second: spent.rate(),
            memory_bytes: resident_memory(),
            data_share: spent.share(spent.data),
            communication_share: spent.share(spent.communication),
        };
        Ok((report, sums[stops] > 0.0))
    }

    /// Writes the line of a step, with the rates since the last one and what was evaluated after it.
    fn log(
        &mut self,
        report: StepReport,
        evaluated: Option<Vec<(String, f64)>>,
        metrics: &mut MetricsWriter,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let window = self.meter.take_window();
        let report = StepReport {
            images_per_second: window.rate(),
            data_share: window.share(window.data),
            communication_share: window.share(window.communication),
            ..report
        };
        self.last.insert("loss".to_owned(), Value::from(report.loss));
        let mut line = line(&report);
        for (name, value) in evaluated.iter().flatten() {
            line = line.with(&format!("test_{name}"), *value);
            self.last.insert(format!("test_{name}"), Value::from(*value));
        }
        metrics.write(&line)?;
        observer.step(&report, true);
        if let Some(measures) = evaluated {
            observer.event(&Event::Evaluated { step: report.step, measures });
        }
        Ok(())
    }

    /// What is done between steps: samples and checkpoints, by rank 0, to which the others give their parts.
    fn after_step(
        &mut self,
        step: u64,
        last: bool,
        interrupted: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let config = self.config;
        if !interrupted && self.plan.is_due(config.sample.every, step, last) {
            let path = self.folder.samples().join(format!("step-{step:08}.png"));
            if samples::draw_for_run(self, &path)? {
                observer.event(&Event::Sampled { step, path });
            }
        }
        let checkpoint = &config.checkpoint;
        if checkpoint.enabled && self.plan.is_due(checkpoint.every, step, last || interrupted) {
            let state = Map::from_iter([
                ("images".to_owned(), Value::from(step * self.plan.global_batch as u64)),
                ("epoch".to_owned(), Value::from(self.plan.place(step).0)),
                ("model".to_owned(), Value::from(config.model.kind.as_str())),
                ("seed".to_owned(), Value::from(config.train.seed)),
            ]);
            let (checkpoints, keep) = (self.folder.checkpoints(), checkpoint.keep);
            if let Some(saved) = self.learner.save(self.peers, &checkpoints, keep, state)? {
                observer.event(&Event::Saved { step, path: saved.folder().to_owned() });
            }
        }
        Ok(())
    }

    /// What the run has come to; `None` on ranks other than 0.
    fn summary(
        &mut self,
        interrupted: bool,
        wall: Duration,
    ) -> Result<Option<crate::run::Summary>, TrainError> {
        let ranks = account::gather(self)?;
        if !self.is_first() {
            return Ok(None);
        }
        draw_curves(self.folder)?;
        Ok(Some(account::summary(self, ranks, interrupted, wall)))
    }
}

/// The line of `metrics.jsonl` for a step.
fn line(report: &StepReport) -> Line {
    let mut line = Line::new(report.step).with("loss", report.loss).with("epoch", report.epoch as u64);
    for (name, value) in &report.measures {
        line = line.with(name, *value);
    }
    line = line.with("lr", report.learning_rate);
    if let Some(norm) = report.gradient_norm {
        line = line.with("grad_norm", norm);
    }
    line.with("images_per_s", report.images_per_second)
        .with("memory_bytes", report.memory_bytes)
        .with("data_share", report.data_share)
        .with("communication_share", report.communication_share)
}

/// Draws the loss over the steps.
fn draw_curves(folder: &RunFolder) -> Result<(), TrainError> {
    let lines = read_metrics(&folder.metrics())?;
    let title = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let svg = curves_svg(&title, &lines, &["loss", "test_loss"]);
    let path = folder.curves();
    crate::run::write_aside(&path, svg.as_bytes()).map_err(crate::run::RunError::io("write", &path))?;
    Ok(())
}

/// Where a run's checkpoints are looked at from outside: its newest.
pub(super) fn newest_checkpoint(folder: &RunFolder) -> Result<Checkpoint, TrainError> {
    let checkpoints: &Path = &folder.checkpoints();
    let (newest, mut damaged) = Checkpoint::newest(checkpoints);
    match (newest, damaged.pop()) {
        (Some(checkpoint), _) => Ok(checkpoint),
        (None, Some(error)) => Err(error.into()),
        (None, None) => {
            Err(TrainError::Setup(format!("{} holds no checkpoint yet", folder.path().display())))
        }
    }
}
