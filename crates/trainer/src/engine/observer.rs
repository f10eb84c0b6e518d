//! Events of a run for an observer, which decides what is printed. The loop prints nothing.

use std::path::PathBuf;
use std::time::Duration;

use phalanx_run::{ArithmeticRate, Line, Summary, UnitRate};

/// The description of a run before its first step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Started {
    /// The run's name.
    pub name: String,
    /// The run's folder.
    pub folder: PathBuf,
    /// The model, in words.
    pub model: String,
    /// The number of parameters.
    pub parameters: u64,
    /// The data, in words.
    pub data: String,
    /// Training images.
    pub images: usize,
    /// The ranks that share the work.
    pub ranks: StartedRanks,
    /// The device, and the reason if it was chosen automatically.
    pub device: String,
    /// The measure of the evaluation that leads; a measure of training of this name leads, too.
    pub headline: Option<String>,
    /// Learning rates that follow from the batch.
    pub scaled_rates: Vec<ScaledRate>,
    /// Its steps.
    pub steps: StepRange,
}

/// The ranks of a run, and how they share its work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartedRanks {
    /// Ranks that train.
    pub training: usize,
    /// Ranks that only serve.
    pub servers: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// The cores of each rank; empty if all ranks may run on all cores of their hosts.
    pub cores: String,
    /// The strategy of parallelism.
    pub strategy: String,
    /// Ranks that share each layer; `None` if layers are whole.
    pub tensor: Option<usize>,
    /// The stages of the model, their schedule and the micro-batches; empty if there are none.
    pub stages: String,
}

/// The steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepRange {
    /// Steps done before, from the checkpoint that is resumed.
    pub done: u64,
    /// The step after which the run ends.
    pub total: u64,
    /// Steps in an epoch.
    pub per_epoch: u64,
}

/// A learning rate that is scaled by the batch (`optim.base_batch`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScaledRate {
    /// The network; empty for the only one.
    pub network: String,
    /// The rate that is used, at its peak.
    pub rate: f64,
    /// The configured rate, `optim.lr`.
    pub configured: f64,
    /// Images of a step.
    pub batch: usize,
    /// The batch that the configured rate is meant for.
    pub base_batch: usize,
}

/// The report of one step. Rates are means over the steps since the last line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// The step after which the run ends.
    pub total: u64,
    /// The epoch, counted from 0.
    pub epoch: usize,
    /// The phases, in order.
    pub phases: Vec<PhaseReport>,
    /// The updates of the phases, in order.
    pub updates: Vec<UpdateReport>,
    /// Seconds of training steps from the start of the run until the last rank had done this one, without evaluations and
    /// checkpoints. On rank 0.
    pub seconds: f64,
    /// Samples per second, over all ranks.
    pub samples_per_second: f64,
    /// The rate of the units that the weights of samples count, such as tokens, over all ranks.
    pub units: Option<UnitRate>,
    /// The arithmetic of rank 0; none if nothing was multiplied.
    pub arithmetic: Option<ArithmeticRate>,
    /// Resident memory of rank 0, in bytes.
    pub memory_bytes: Option<u64>,
    /// Fraction of the time that rank 0 waited for data.
    pub data_share: f64,
    /// Fraction of the time that rank 0 waited for communication; none if a GPU waits for it, not the host.
    pub communication_share: Option<f64>,
}

impl StepReport {
    /// Returns the step under the names that `metrics.jsonl` has.
    pub fn metrics(&self) -> Line {
        let mut line = Line::new(self.step);
        for phase in &self.phases {
            line = line.with(&named(&phase.name, "loss"), phase.loss);
        }
        line = line.with("epoch", self.epoch as u64);
        for phase in &self.phases {
            for (name, value) in &phase.measures {
                line = line.with(&named(&phase.name, name), *value);
            }
        }
        for update in &self.updates {
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
            .with("seconds", self.seconds)
            .with("samples_per_s", self.samples_per_second)
            .with("memory_bytes", self.memory_bytes)
            .with("data_share", self.data_share);
        if let Some(UnitRate { unit, per_second }) = &self.units {
            line = line.with(&format!("{unit}_per_s"), *per_second);
        }
        if let Some(ArithmeticRate { gflops, peak_share }) = self.arithmetic {
            line = line.with("gflops", gflops);
            if let Some(share) = peak_share {
                line = line.with("peak_share", share);
            }
        }
        if let Some(share) = self.communication_share {
            line = line.with("communication_share", share);
        }
        line
    }
}

/// The loss and measures of a phase, as means over the global batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PhaseReport {
    /// The phase; empty for the only one.
    pub name: String,
    /// The loss.
    pub loss: f64,
    /// Further measures, such as the terms of the loss.
    pub measures: Vec<(String, f64)>,
}

/// The update of a network.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateReport {
    /// The network; empty for the only one.
    pub network: String,
    /// The learning rate.
    pub learning_rate: f64,
    /// The L2 norm of the gradient before clipping, if it was computed.
    pub gradient_norm: Option<f64>,
    /// The loss scale, if the loss was scaled.
    pub loss_scale: Option<f64>,
    /// True if the update was skipped because gradients were not finite.
    pub left_out: bool,
}

/// Returns the name of a measure of a phase or network, such as `critic_loss`; the plain name if there is only one.
pub fn named(whose: &str, what: &str) -> String {
    if whose.is_empty() { what.to_owned() } else { format!("{whose}_{what}") }
}

/// An event other than a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The test split was evaluated.
    Evaluated {
        /// After this step.
        step: u64,
        /// Names and values.
        measures: Vec<(String, f64)>,
        /// True if it is the best so far, by `checkpoint.best` or `train.patience`.
        is_best: bool,
    },
    /// A checkpoint is complete. Steps may have been done since it began.
    Saved {
        /// After this step.
        step: u64,
        /// Its folder.
        path: PathBuf,
        /// The time that it paused training.
        stalled: Duration,
    },
    /// An image of samples was written.
    Sampled {
        /// After this step.
        step: u64,
        /// The image.
        path: PathBuf,
    },
    /// The run resumes from a checkpoint.
    Resumed {
        /// After this step.
        step: u64,
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// Training may have gone wrong, and goes on: see [`phalanx_config::WatchConfig`].
    Warned {
        /// In this step.
        step: u64,
        /// The problem, such as the collapse of a network or a jump of the gradient.
        problem: String,
    },
    /// A rank was lost, and the others continue.
    Died {
        /// Its number when the run began.
        rank: usize,
        /// Its host.
        host: String,
        /// The first step without it, counted from 1.
        from_step: u64,
        /// The number of ranks that continue.
        left: usize,
    },
    /// A rank has left on request, and the others continue.
    Left {
        /// Its number when the run began, or that it joined under.
        rank: usize,
        /// Its host.
        host: String,
        /// The first step without it, counted from 1.
        from_step: u64,
        /// The number of ranks that continue.
        ranks: usize,
    },
    /// A rank has joined the run.
    Joined {
        /// The number that it joined under.
        rank: usize,
        /// The first step with it, counted from 1.
        from_step: u64,
        /// The number of ranks that train.
        ranks: usize,
    },
    /// A message to the user.
    Note(String),
}

/// Observes a run.
pub trait Observer {
    /// The first step is about to run.
    fn started(&mut self, started: &Started) {
        let _ = started;
    }

    /// This rank takes over from rank 0, which was lost. Events are for the user from now on.
    fn take_over(&mut self, started: &Started) {
        let _ = started;
    }

    /// A step is done. `logged` is true if its line is due by `log.every`; an evaluation alone has a line of metrics, too.
    fn step(&mut self, report: &StepReport, logged: bool) {
        let _ = (report, logged);
    }

    /// Another event has happened.
    fn event(&mut self, event: &Event) {
        let _ = event;
    }

    /// The run has ended and its files are complete.
    fn finished(&mut self, summary: &Summary) {
        let _ = summary;
    }
}

/// Ignores all events: the observer of ranks other than 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopObserver;

impl Observer for NoopObserver {}
