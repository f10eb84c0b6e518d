//! What a training run tells while it goes on. Who listens decides what is printed; the loop prints nothing.

use std::path::PathBuf;
use std::time::Duration;

use phalanx_run::Summary;

/// What is known before the first step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Started {
    /// The run's name.
    pub name: String,
    /// The run's folder.
    pub folder: PathBuf,
    /// The model, in words.
    pub model: String,
    /// Numbers that are learnt.
    pub parameters: u64,
    /// The data, in words.
    pub data: String,
    /// Training images.
    pub images: usize,
    /// Ranks that train.
    pub world_size: usize,
    /// Ranks that only serve.
    pub servers: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Which cores which rank may run on; empty where all may run on all of their hosts'.
    pub cores: String,
    /// What computes, and why that, where it was chosen.
    pub device: String,
    /// How ranks share the work.
    pub strategy: String,
    /// Steps already done, from the checkpoint that is resumed.
    pub done: u64,
    /// The step after which the run ends.
    pub total: u64,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
}

/// One step, or the mean of several.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// The step after which the run ends.
    pub total: u64,
    /// The epoch, counted from 0.
    pub epoch: usize,
    /// Its phases, in order.
    pub phases: Vec<PhaseReport>,
    /// The updates of its phases, in order.
    pub updates: Vec<UpdateReport>,
    /// Seconds of training steps, from the start of the run until the last rank had done this one; evaluations and checkpoints
    /// are not counted. On rank 0.
    pub seconds: f64,
    /// Images over all ranks and a second.
    pub images_per_second: f64,
    /// Memory that rank 0 holds.
    pub memory_bytes: Option<u64>,
    /// Share of the time in which rank 0 waited for data.
    pub data_share: f64,
    /// Share of the time in which rank 0 waited for communication; none where a GPU waits for it, and the host does not.
    pub communication_share: Option<f64>,
}

/// What came of a phase's loss, as means over the global batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PhaseReport {
    /// The phase; empty for the only one.
    pub name: String,
    /// The loss.
    pub loss: f64,
    /// What else the phase measures, such as the terms of the loss.
    pub measures: Vec<(String, f64)>,
}

/// What came of the gradients of a network.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateReport {
    /// The network; empty for the only one.
    pub network: String,
    /// The learning rate.
    pub learning_rate: f64,
    /// The L2 norm of the gradient before clipping, if it was taken.
    pub gradient_norm: Option<f64>,
    /// What the loss was multiplied by for backward, if it was.
    pub loss_scale: Option<f64>,
    /// Whether the gradients were not finite and the weights stayed as they were.
    pub left_out: bool,
}

/// What a measure of a phase or of a network is called: `critic_loss`; by its own name where there is only one.
pub fn named(whose: &str, what: &str) -> String {
    if whose.is_empty() { what.to_owned() } else { format!("{whose}_{what}") }
}

/// Something worth a line besides steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The test split was evaluated.
    Evaluated {
        /// After this step.
        step: u64,
        /// Names and values.
        measures: Vec<(String, f64)>,
    },
    /// A checkpoint is complete; steps may have been done since.
    Saved {
        /// After this step.
        step: u64,
        /// Its folder.
        path: PathBuf,
        /// How long training stood still for it.
        stalled: Duration,
    },
    /// A grid of samples was written.
    Sampled {
        /// After this step.
        step: u64,
        /// The picture.
        path: PathBuf,
    },
    /// The run goes on from a checkpoint.
    Resumed {
        /// After this step.
        step: u64,
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// Networks against each other have collapsed; see [`crate::config::WatchConfig`].
    Collapsed {
        /// In this step.
        step: u64,
        /// Which, and why.
        problem: String,
    },
    /// A worker has died, and the others go on without it.
    Died {
        /// Its number when the run began.
        rank: usize,
        /// Its host.
        host: String,
        /// The first step that the others share without it, counted from 1.
        from_step: u64,
        /// Workers that are left.
        left: usize,
    },
    /// Something that the user should know.
    Note(String),
}

/// Listens to a run.
pub trait Observer {
    /// Everything is ready for the first step.
    fn started(&mut self, started: &Started) {
        let _ = started;
    }

    /// This rank takes over from rank 0, which has died: what comes from now on is for the user.
    fn take_over(&mut self, started: &Started) {
        let _ = started;
    }

    /// A step is done. `logged` says whether its line was written to the metrics.
    fn step(&mut self, report: &StepReport, logged: bool) {
        let _ = (report, logged);
    }

    /// Something else happened.
    fn event(&mut self, event: &Event) {
        let _ = event;
    }

    /// The run has ended and all is written.
    fn finished(&mut self, summary: &Summary) {
        let _ = summary;
    }
}

/// Listens to nothing: what the ranks other than 0 have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}
