//! Errors of a training run.

use phalanx_batches::BatchError;
use phalanx_collectives::CommError;
use phalanx_datasets::DatasetError;
use phalanx_sharding::ShardingError;
use phalanx_tensor::{ArrayError, TensorError};
use phalanx_weights::WeightError;

use phalanx_checkpoint::CheckpointError;
use phalanx_run::RunError;

/// The reason why a run ended before its last step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss is not finite. Nothing was saved since.
    #[error(
        "step {step}: the loss{} is {loss}; {}, and a lower optim.lr or a train.clip_norm may help",
        of_phase(phase),
        last_saved(*saved)
    )]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The phase; empty for the only one.
        phase: String,
        /// The loss.
        loss: f64,
        /// The step of the newest checkpoint, if one was saved.
        saved: Option<u64>,
        /// True if rank 0 reports the error.
        elsewhere: bool,
    },
    /// A measure after the last step is not finite. The step is saved.
    #[error(
        "after the last step, {step}: {name} is {value}; the weights are saved, but they are of no use for this data"
    )]
    MeasureNotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The measure.
        name: String,
        /// Its value.
        value: f64,
    },
    /// The gradients are not finite in many steps, at any loss scale.
    #[error(
        "step {step}: the gradients are not finite, as in the {in_a_row} steps before, now at a loss scale of {scale}; train.precision = \"bf16\" has the range of f32, and a lower optim.lr may help"
    )]
    Overflow {
        /// The step, counted from 1.
        step: u64,
        /// Skipped steps before it.
        in_a_row: u64,
        /// The loss scale of the next step.
        scale: f64,
        /// True if rank 0 reports the error.
        elsewhere: bool,
    },
    /// An epoch has no step.
    #[error("an epoch of {images} training samples has no full batch of train.global_batch = {batch}")]
    NoStep {
        /// Training images.
        images: usize,
        /// The global batch.
        batch: usize,
    },
    /// The configuration cannot be met.
    #[error("{0}")]
    Setup(String),
    /// Ranks start from different checkpoints.
    #[error(
        "rank {rank} finds the checkpoint of step {found}, other ranks another; is {folder} the same folder on all hosts?"
    )]
    Disagree {
        /// The rank.
        rank: usize,
        /// The step of its checkpoint.
        found: u64,
        /// The run's folder.
        folder: String,
    },
    /// A run that has saved checkpoints has none that can be read.
    #[error(
        "{folder}: no checkpoint can be resumed from: {}; `train --restart` starts again at step 1 and keeps the old files in a subfolder",
        problems.join("; ")
    )]
    NoCheckpoint {
        /// The run's folder.
        folder: String,
        /// The problem of each checkpoint, the newest first.
        problems: Vec<String>,
    },
    /// The optimizer state of a checkpoint is not what the configured optimizer keeps.
    #[error(
        "the checkpoint of step {step} has {} of {}, and the configured optimizer keeps {}; set optim.kind and optim.momentum \
         back, or begin with fresh optimizer state: --resume --reset optimizer",
        words(saved),
        network_words(network),
        words(kept)
    )]
    OptimizerState {
        /// The checkpoint's step.
        step: u64,
        /// The network, or nothing if it is the only one.
        network: String,
        /// The kinds of state in the checkpoint.
        saved: Vec<String>,
        /// The kinds of state of the configured optimizer.
        kept: Vec<String>,
    },
    /// An error of a user's own training.
    #[error(transparent)]
    Training(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// A rank that is a thread of this process has panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// Ranks were lost that the run cannot continue without.
    #[error(
        "{} died; {left} workers are left, and sync.min_workers = {least}; start the run again with --resume", dead.join(", ")
    )]
    Died {
        /// The ranks and their hosts.
        dead: Vec<String>,
        /// Workers that are left.
        left: usize,
        /// The least number of workers (`sync.min_workers`).
        least: usize,
    },
    /// Ranks hold different values of a tensor that they should hold alike.
    #[error("after step {step}: {found}")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The tensor and the ranks.
        found: Box<Divergence>,
        /// True if another rank reports the error.
        elsewhere: bool,
    },
    /// Parameter servers were lost, with their parameters.
    #[error(
        "{} died, a parameter server, with the parameters that it had; start the run again with --resume", dead.join(", ")
    )]
    ServerDied {
        /// The ranks, workers included, and their hosts.
        dead: Vec<String>,
    },
    /// Too few ranks are left. They have saved the state, if checkpoints are enabled.
    #[error(
        "{} died or left; {left} of at least {least} ranks are left (elastic.min), after step {step}{}; start the run again with --resume",
        gone.join(", "), if *saved { ", which is saved" } else { "" }
    )]
    TooFew {
        /// The ranks and their hosts.
        gone: Vec<String>,
        /// Ranks that are left.
        left: usize,
        /// The least number of ranks (`elastic.min`).
        least: usize,
        /// The last step that was finished.
        step: u64,
        /// True if it is saved.
        saved: bool,
    },
    /// No surviving rank has the state of a lost rank, and there is no checkpoint.
    #[error("what rank {lost} had of the state after step {step} is lost, and there is no checkpoint")]
    StateLost {
        /// A rank that had it, by its number when the run began.
        lost: usize,
        /// The newest step of which a rank has a part.
        step: u64,
    },
    /// The other ranks have met without this one and continue.
    #[error(
        "ranks on {host} have gone on without this rank, at least to step {step}: what it has is left out, and the run is theirs"
    )]
    LeftBehind {
        /// The host of their rank 0.
        host: String,
        /// Their last step.
        step: u64,
    },
    /// Other ranks cannot be reached.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The model cannot be parallelised.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    /// Data cannot be read.
    #[error(transparent)]
    Data(#[from] phalanx_data::DataError),
    /// Metrics of images cannot be computed.
    #[error(transparent)]
    Quality(#[from] phalanx_quality::QualityError),
    /// The model cannot be computed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The run's folder cannot be written or read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Weights that the training begins with cannot be used.
    #[error(transparent)]
    Weights(WeightError),
    /// The configured images cannot be used.
    #[error(transparent)]
    Datasets(DatasetError),
    /// A batch cannot be made or read.
    #[error(transparent)]
    Batch(BatchError),
}

/// A tensor that ranks should hold alike and hold differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// `model`, `ema`, or a kind of the optimizer's state.
    pub kind: String,
    /// The first parameter or buffer that differs.
    pub name: String,
    /// The ranks that differ from the majority; none if there is no majority.
    pub odd: Vec<usize>,
    /// All ranks that should hold the same.
    pub ranks: Vec<usize>,
    /// The hosts of the odd ranks, or of all, if there are none.
    pub hosts: Vec<String>,
    /// The number of further tensors that differ.
    pub further: usize,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, odd, ranks, hosts, further } = self;
        let list = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let mut hosts = hosts.clone();
        hosts.dedup();
        let hosts = hosts.join(", ");
        let noun = |ranks: &[usize]| if ranks.len() == 1 { "rank" } else { "ranks" };
        if odd.is_empty() {
            write!(
                f,
                "ranks {} hold different bits of `{name}` ({kind}), and there is no majority",
                list(ranks)
            )?;
        } else {
            let others: Vec<usize> = ranks.iter().copied().filter(|rank| !odd.contains(rank)).collect();
            write!(f, "{} {} of {hosts} holds other bits of `{name}` ({kind})", noun(odd), list(odd))?;
            write!(f, " than {} {}", noun(&others), list(&others))?;
        }
        if *further > 0 {
            write!(f, ", and of {further} further tensors")?;
        }
        write!(
            f,
            ": silent data corruption by memory, a CPU or a library; check the machine ({hosts}) before you resume with --resume"
        )
    }
}

#[cfg(feature = "cuda")]
impl From<phalanx_cuda::GpuError> for TrainError {
    fn from(error: phalanx_cuda::GpuError) -> Self {
        Self::Tensor(error.into())
    }
}

/// Names kinds of optimizer state.
fn words(kinds: &[String]) -> String {
    match kinds {
        [] => "no optimizer state".to_owned(),
        kinds => kinds.join(" and "),
    }
}

fn network_words(network: &str) -> String {
    if network.is_empty() { "the network".to_owned() } else { format!("network `{network}`") }
}

impl TrainError {
    /// Creates the error of a panic.
    pub(super) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panicked(text.unwrap_or_else(|| "a value that is not text".to_owned()))
    }

    /// True if the rank was told to stop before it met the others, which is not a failure.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Comm(CommError::Cancelled { .. }))
    }

    /// True if the rank has not met the others, so nothing has begun.
    pub fn is_unmet(&self) -> bool {
        matches!(self, Self::Comm(CommError::Rendezvous { .. } | CommError::Missing { .. }))
    }

    /// True if another rank's failure caused this one. The other one is reported.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::NotFinite { elsewhere, .. }
            | Self::Overflow { elsewhere, .. }
            | Self::Diverged { elsewhere, .. } => *elsewhere,
            Self::Checkpoint(CheckpointError::Elsewhere { .. })
            | Self::Died { .. }
            | Self::ServerDied { .. }
            | Self::LeftBehind { .. } => true,
            _ => self.communication().is_some_and(is_elsewhere),
        }
    }

    /// True if the others continue without this rank.
    pub fn is_left_out(&self) -> bool {
        matches!(self, Self::LeftBehind { .. })
            || self.communication().is_some_and(|error| matches!(error, CommError::LeftOut { .. }))
    }

    /// True if another rank was lost without an error of its own.
    pub(super) fn is_loss(&self) -> bool {
        self.communication().is_some_and(|error| matches!(error, CommError::PeerLost { .. }))
    }

    /// The ranks that caused the failure, if this rank only noticed it: those that hung or were lost.
    pub fn blamed(&self) -> &[usize] {
        self.communication().map_or(&[], CommError::blamed)
    }

    /// Returns an error about a rank that hung or was lost with the numbers that ranks have in the run. Other errors stay as they are.
    pub(super) fn renumbered(self, number: impl Fn(usize) -> usize) -> Self {
        match self.communication() {
            Some(error) if !error.blamed().is_empty() => Self::Comm(error.clone().renumbered(number)),
            _ => self,
        }
    }

    /// The error of the communicator, if it is the cause.
    fn communication(&self) -> Option<&CommError> {
        match self {
            Self::Comm(error) => Some(error),
            Self::Sharding(error) => comm_error(error),
            Self::Tensor(error) => comm_error(error),
            _ => None,
        }
    }
}

/// Finds the error of the communicator in a chain of sources. Operations that wait for other ranks wrap it, some several times.
fn comm_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a CommError> {
    // Transparent errors are not sources of each other.
    match error.downcast_ref::<ShardingError>() {
        Some(ShardingError::Comm(error)) => return Some(error),
        Some(ShardingError::Tensor(error)) => return comm_error(error),
        _ => {}
    }
    error.downcast_ref::<CommError>().or_else(|| comm_error(error.source()?))
}

fn of_phase(phase: &str) -> String {
    if phase.is_empty() { String::new() } else { format!(" of phase `{phase}`") }
}

fn last_saved(step: Option<u64>) -> String {
    match step {
        Some(step) => format!("the last checkpoint is of step {step}"),
        None => "no checkpoint was saved before".to_owned(),
    }
}

fn is_elsewhere(error: &CommError) -> bool {
    matches!(
        error,
        CommError::PeerLost { .. }
            | CommError::Aborted { .. }
            | CommError::Closed
            | CommError::Minority { .. }
            | CommError::LeftOut { .. }
    )
}

impl From<ArrayError> for TrainError {
    fn from(error: ArrayError) -> Self {
        Self::Tensor(error.into())
    }
}

impl From<WeightError> for TrainError {
    fn from(error: WeightError) -> Self {
        match error {
            WeightError::Tensor(error) => Self::Tensor(error),
            WeightError::Checkpoint(error) => Self::Checkpoint(error),
            WeightError::Run(error) => Self::Run(error),
            other => Self::Weights(other),
        }
    }
}

impl From<DatasetError> for TrainError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::Data(error) => Self::Data(error),
            DatasetError::Run(error) => Self::Run(error),
            other => Self::Datasets(other),
        }
    }
}

impl From<BatchError> for TrainError {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Data(error) => Self::Data(error),
            BatchError::Array(error) => Self::Tensor(error.into()),
            BatchError::Candle(error) => Self::Candle(error),
            other => Self::Batch(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_is_a_consequence_wherever_it_was_noticed() {
        let lost = || CommError::PeerLost { rank: 1, operation: "all-reduce".to_owned(), sequence: 7 };
        let hook = |source| TensorError::Hook { op: "batch_norm2d", source };
        let consequences = [
            TrainError::from(lost()),
            ShardingError::from(lost()).into(),
            hook(Box::new(lost())).into(),
            hook(Box::new(ShardingError::from(lost()))).into(),
            hook(Box::new(ShardingError::from(hook(Box::new(lost()))))).into(),
            ShardingError::from(hook(Box::new(ShardingError::from(lost())))).into(),
            TrainError::NotFinite {
                step: 1,
                phase: String::new(),
                loss: f64::NAN,
                saved: None,
                elsewhere: true,
            },
            CheckpointError::Elsewhere { rank: 1, problem: "the disk is full".to_owned() }.into(),
        ];
        assert!(consequences.iter().all(TrainError::is_consequence));
        let missing = CommError::from(phalanx_collectives::EnvironmentError::new("RANK", "is not set"));
        let own = [
            TrainError::from(missing.clone()),
            hook(Box::new(missing)).into(),
            TrainError::NotFinite {
                step: 1,
                phase: String::new(),
                loss: f64::NAN,
                saved: None,
                elsewhere: false,
            },
            TrainError::NoStep { images: 1, batch: 2 },
        ];
        assert!(!own.iter().any(TrainError::is_consequence));
    }

    #[test]
    fn an_infinite_loss_names_the_checkpoint_that_exists() {
        let said = |saved| {
            let (step, phase, loss) = (7, "critic".to_owned(), f64::INFINITY);
            TrainError::NotFinite { step, phase, loss, saved, elsewhere: false }.to_string()
        };
        let begins = "step 7: the loss of phase `critic` is inf; ";
        assert!(said(Some(5)).starts_with(&format!("{begins}the last checkpoint is of step 5, ")));
        assert!(said(None).starts_with(&format!("{begins}no checkpoint was saved before, ")));
    }
}
