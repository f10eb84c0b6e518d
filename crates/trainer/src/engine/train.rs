//! The training loop of one rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_tensor::loss::Over;
use phalanx_tensor::{Context, Key, Session, Tape};
use serde_json::{Map, Value};

use super::data::Data;
use super::feed::{Feed, MicroBatch};
use super::learner::Learner;
use super::meter::{Meter, Spent, timed};
use super::peers::Peers;
use super::saver::{Saved, Saver, TOLD};
use super::{
    Event, Observer, Plan, Started, StepReport, TrainError, World, account, evaluate, precision, samples,
    tasks,
};
use crate::config::{Config, Resolved};
use crate::launch::StopFlag;
use crate::run::checkpoint::Checkpoint;
use crate::run::{Line, MetricsWriter, RunFolder, curves_svg, read_metrics, resident_memory};

/// Trains as one rank of `world`, going on from the newest complete checkpoint in `folder` if there is one, until
/// the configured step or until `stop` is raised on any rank.
///
/// # Errors
/// See [`TrainError`]; one for which [`TrainError::is_cancelled`] holds, if `stop` is raised before the ranks have met. A failing rank makes the other ranks fail with an error for which
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
    world.check(config)?;
    let context = precision::context(config, world)?;
    let mut peers = Peers::connect(world, config, &folder.logs(), stop)?;
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
    saver: Saver,
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
        let data = Data::open(config, peers)?;
        let (images, batch) = (data.train_len(), config.train.global_batch);
        let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
        let key = Key::new(config.train.seed);
        let task = tasks::build(config, &data, key, !peers.is_shared())?;
        peers.share(config, task.store(), context.threads())?;
        let learner = Learner::new(config, task, &plan, peers, context.clone())?;
        let (meter, last, saver) = (Meter::default(), Map::new(), Saver::new(folder, config));
        Ok(Self { folder, config, data, peers, plan, learner, context, meter, saver, key, last })
    }

    fn is_first(&self) -> bool {
        self.peers.rank() == 0
    }

    /// Goes on from the newest checkpoint, if there is one, and has all ranks agree on which.
    fn resume(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (newest, damaged) = find_checkpoint(self.peers, self.folder)?;
        for problem in damaged {
            observer.event(&Event::Note(format!("{problem}; an older checkpoint is used")));
        }
        if let Some(checkpoint) = newest {
            let bytes = self.learner.load(self.peers, &checkpoint)?;
            let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
            tracing::info!("resumes after step {step} with {bytes} bytes read from {}", path.display());
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
            let (report, stopped) = match self.step(&mut feed, stop, observer) {
                Err(error @ TrainError::NotFinite { .. }) => {
                    // All ranks end here together, and can still complete what they have begun to save.
                    self.settle(observer)?;
                    return Err(error);
                }
                outcome => outcome?,
            };
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
        self.settle(observer)?;
        Ok(interrupted)
    }

    /// One step: its report without rates, and whether any rank was asked to stop.
    fn step(
        &mut self,
        feed: &mut Feed,
        stop: &StopFlag,
        observer: &mut dyn Observer,
    ) -> Result<(StepReport, bool), TrainError> {
        let begun = Instant::now();
        let mut spent = Spent::default();
        let step = self.learner.step;
        let task = &self.learner.task;
        task.store().zero_grads();
        let share = timed(&mut spent.data, || feed.next())?;
        // Batches that come from another rank count as data.
        let before = self.peers.traffic();
        // The loss, the task's measures, the requests to stop, and how far saving is, summed over micro-batches and then ranks.
        let mut sums = vec![0.0; 2 + task.measures().len() + TOLD];
        let last = share.pieces.len().saturating_sub(1);
        // The last batch of an epoch may leave ranks without images in some micro-batch; they then cannot gather parameters
        // block by block together.
        let uneven = share.pieces.iter().any(|piece| piece.ranks < self.peers.size());
        if uneven {
            self.peers.summon()?;
        }
        for (index, MicroBatch { batch, offset, ranks }) in share.pieces.iter().enumerate() {
            if *ranks == 0 {
                continue;
            }
            // Those who have images of it normalise them together; the others wait at what comes after.
            let stats_sync = self.peers.stats_sync(*ranks)?;
            if batch.is_empty() {
                continue;
            }
            let session = Session {
                context: self.context.clone(),
                training: true,
                key: self.key.stream("train").step(step),
                sample_offset: *offset,
                listener: self.peers.listener(),
                stats_sync,
                recompute: precision::recompute(self.config),
                precision: precision::precision(self.config),
            };
            // Gradients travel once they are complete, with the last micro-batch: on all ranks the same, also those that have
            // no image of it.
            self.peers.accumulate(index != last);
            let tape = Tape::recording(session);
            let outcome = task.loss(&tape, batch, Over::Count(share.global), step)?;
            sums[0] += f64::from(outcome.loss.tensor()?.to_scalar::<f32>()?);
            for (sum, measure) in sums[1..].iter_mut().zip(&outcome.measures) {
                *sum += measure;
            }
            tape.backward_scaled(&outcome.loss, self.learner.loss_scale())?;
        }
        self.peers.accumulate(false);
        if uneven {
            self.peers.dismiss()?;
        }
        let stops = sums.len() - 1 - TOLD;
        sums[stops] = f64::from(u8::from(stop.is_raised()));
        sums[stops + 1..].copy_from_slice(&self.saver.tell());
        self.peers.finish_gradients()?;
        self.peers.sum(&mut sums)?;
        if let Some(saved) = self.saver.hear(self.peers, &sums[stops + 1..])? {
            tell_saved(observer, saved);
        }
        let loss = sums[0];
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { step: step + 1, loss, elsewhere: !self.is_first() });
        }
        let measures =
            task.measures().iter().map(|name| (*name).to_owned()).zip(sums[1..stops].to_vec()).collect();
        let learning_rate = self.learner.learning_rate();
        let update = self.learner.update(self.peers)?;
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
            gradient_norm: update.norm,
            loss_scale: update.loss_scale,
            left_out: update.left_out,
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

    /// What is done between steps: samples, by rank 0, to which the others give their parts, and checkpoints.
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
            let mut state = Map::from_iter([
                ("images".to_owned(), Value::from(step * self.plan.global_batch as u64)),
                ("epoch".to_owned(), Value::from(self.plan.place(step).0)),
                ("model".to_owned(), Value::from(config.model.kind.as_str())),
                ("seed".to_owned(), Value::from(config.train.seed)),
            ]);
            let (learner, peers) = (&self.learner, self.peers);
            let parts = || Ok((learner.parts(peers, &mut state)?, state));
            for saved in self.saver.begin(peers, step, parts)? {
                tell_saved(observer, saved);
            }
        }
        Ok(())
    }

    /// Waits until the checkpoint that is being written is complete.
    fn settle(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Some(saved) = self.saver.settle(self.peers)? {
            tell_saved(observer, saved);
        }
        self.last.insert("save_seconds".to_owned(), Value::from(self.saver.stalled().as_secs_f64()));
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
    if let Some(scale) = report.loss_scale {
        line = line.with("loss_scale", scale).with("left_out", u64::from(report.left_out));
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

/// Tells that a checkpoint is complete.
fn tell_saved(observer: &mut dyn Observer, saved: Saved) {
    let Saved { step, path, stalled } = saved;
    observer.event(&Event::Saved { step, path, stalled });
}

/// The newest complete checkpoint, which all ranks check together, and what is wrong with newer ones.
fn find_checkpoint(
    peers: &Peers,
    folder: &RunFolder,
) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let listed = Checkpoint::list(&folder.checkpoints());
    let found = listed.last().map_or(0, |(step, _)| *step);
    let steps: Vec<String> = listed.iter().map(|(step, _)| step.to_string()).collect();
    let own = steps.join(" ");
    if peers.gather_text(&own)?.iter().any(|other| *other != own) {
        let folder = folder.path().display().to_string();
        return Err(TrainError::Disagree { rank: peers.rank(), found, folder });
    }
    let mut damaged = Vec::new();
    for (_, path) in listed.into_iter().rev() {
        let opened = Checkpoint::open_share(&path, peers.rank(), peers.size());
        let own = opened.as_ref().err().map_or_else(String::new, ToString::to_string);
        let said = peers.gather_text(&own)?;
        match (opened, said.into_iter().find(|problem| !problem.is_empty())) {
            (Ok(checkpoint), None) => return Ok((Some(checkpoint), damaged)),
            (_, problem) => damaged.extend(problem),
        }
    }
    Ok((None, damaged))
}

/// Where a run's checkpoints are looked at from outside: its newest.
pub(crate) fn newest_checkpoint(folder: &RunFolder) -> Result<Checkpoint, TrainError> {
    let (newest, mut damaged) = Checkpoint::newest(&folder.checkpoints());
    match (newest, damaged.pop()) {
        (Some(checkpoint), _) => Ok(checkpoint),
        (None, Some(error)) => Err(error.into()),
        (None, None) => {
            Err(TrainError::Setup(format!("{} holds no checkpoint yet", folder.path().display())))
        }
    }
}
