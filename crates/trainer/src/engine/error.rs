//! What can end a training run.

use phalanx_collectives::CommError;
use phalanx_sharding::ShardingError;
use phalanx_tensor::TensorError;

use phalanx_checkpoint::CheckpointError;
use phalanx_run::RunError;

/// Why a run ended before its last step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss is no number any more. Checkpoints are those from before.
    #[error(
        "step {step}: the loss{} is {loss}; the last checkpoint is from before this step, and a lower optim.lr or a train.clip_norm may help",
        of_phase(phase)
    )]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The phase; empty for the only one.
        phase: String,
        /// The loss.
        loss: f64,
        /// Whether this rank leaves the telling to rank 0.
        elsewhere: bool,
    },
    /// Step after step the gradients are not finite, at whatever scale of the loss.
    #[error(
        "step {step}: the gradients are not finite, as in the {in_a_row} steps before, now at a loss scale of {scale}; train.precision = \"bf16\" has the range of f32, and a lower optim.lr may help"
    )]
    Overflow {
        /// The step, counted from 1.
        step: u64,
        /// Steps before it that were left out.
        in_a_row: u64,
        /// The scale that the next step would have.
        scale: f64,
        /// Whether this rank leaves the telling to rank 0.
        elsewhere: bool,
    },
    /// An epoch has no step.
    #[error("an epoch of {images} training images has no full batch of train.global_batch = {batch}")]
    NoStep {
        /// Training images.
        images: usize,
        /// The global batch.
        batch: usize,
    },
    /// What the configuration asks for cannot be built.
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
    /// What a training of one's own says.
    #[error(transparent)]
    Training(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// A rank that is a thread of this process has panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// Ranks have died without which the run cannot go on.
    #[error(
        "{} died; {left} workers are left, and sync.min_workers = {least}; start the run again with --resume", dead.join(", ")
    )]
    Died {
        /// Who, and on which host.
        dead: Vec<String>,
        /// How many workers are left.
        left: usize,
        /// With how many the run would go on.
        least: usize,
    },
    /// Ranks hold different values of what they are to hold alike.
    #[error("after step {step}: {found}")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// What differs, and between whom.
        found: Box<Divergence>,
        /// Whether this rank leaves the telling to another one.
        elsewhere: bool,
    },
    /// Parameter servers have died, and with them the parameters that they had.
    #[error(
        "{} died, a parameter server, with the parameters that it had; start the run again with --resume", dead.join(", ")
    )]
    ServerDied {
        /// Who, workers included, and on which host.
        dead: Vec<String>,
    },
    /// Ranks have died or left, and those who are left are too few; they have saved what there is, if checkpoints are wanted.
    #[error(
        "{} died or left; {left} of at least {least} ranks are left (elastic.min), after step {step}{}; start the run again with --resume",
        gone.join(", "), if *saved { ", which is saved" } else { "" }
    )]
    TooFew {
        /// Who, and on which host.
        gone: Vec<String>,
        /// How many ranks are left.
        left: usize,
        /// With how many the run goes on.
        least: usize,
        /// The last step that was finished.
        step: u64,
        /// Whether it is saved.
        saved: bool,
    },
    /// Nobody who is left has what the run would go on from, and no checkpoint has it either.
    #[error("what rank {lost} had of the state after step {step} is lost, and there is no checkpoint")]
    StateLost {
        /// One of those who had it, by the number when the run began.
        lost: usize,
        /// The newest step of which anybody has something.
        step: u64,
    },
    /// Those who are left have met without this rank, and gone on.
    #[error(
        "ranks on {host} have gone on without this rank, at least to step {step}: what it has is left out, and the run is theirs"
    )]
    LeftBehind {
        /// The host of the rank that leads them.
        host: String,
        /// How far they are.
        step: u64,
    },
    /// Other ranks cannot be reached.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The work cannot be shared among the ranks.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    /// Images cannot be read.
    #[error(transparent)]
    Data(#[from] phalanx_data::DataError),
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
}

/// What ranks hold differently that are to hold it alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// `model`, `ema`, or a kind of the optimizer's state.
    pub kind: String,
    /// The first parameter or buffer that differs.
    pub name: String,
    /// The ranks that differ from a majority; none if there is no majority.
    pub odd: Vec<usize>,
    /// All ranks that are to hold the same.
    pub ranks: Vec<usize>,
    /// The hosts of the odd ranks, or of all, if there are none.
    pub hosts: Vec<String>,
    /// How many further tensors differ.
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
                "ranks {} hold different bits of `{name}` ({kind}), and nobody is in the majority",
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
            ": silent data corruption, by memory, a processor or a library; look at the machine ({hosts}) before going on with --resume"
        )
    }
}

#[cfg(feature = "cuda")]
impl From<phalanx_cuda::GpuError> for TrainError {
    fn from(error: phalanx_cuda::GpuError) -> Self {
        Self::Tensor(error.into())
    }
}

impl TrainError {
    /// The error for what a panic has left.
    pub(super) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panicked(text.unwrap_or_else(|| "a value that is no text".to_owned()))
    }

    /// Whether the rank was told to end while it still looked for the others, which is no failure.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Comm(CommError::Cancelled { .. }))
    }

    /// Whether the rank has not met the others, so that nothing was begun.
    pub fn is_unmet(&self) -> bool {
        matches!(self, Self::Comm(CommError::Rendezvous { .. } | CommError::Missing { .. }))
    }

    /// Whether another rank's failure caused this one, so that the other's is the one to tell.
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

    /// Whether the others go on without this rank, which ends nothing but itself.
    pub fn is_left_out(&self) -> bool {
        matches!(self, Self::LeftBehind { .. })
            || self.communication().is_some_and(|error| matches!(error, CommError::LeftOut { .. }))
    }

    /// Whether another rank is gone, and has not said that it gives up.
    pub(super) fn is_loss(&self) -> bool {
        self.communication().is_some_and(|error| matches!(error, CommError::PeerLost { .. }))
    }

    /// What the communicator said, whoever has passed it on.
    fn communication(&self) -> Option<&CommError> {
        match self {
            Self::Comm(error) => Some(error),
            Self::Sharding(error) => said(error),
            Self::Tensor(error) => said(error),
            _ => None,
        }
    }
}

/// What the communicator said, if that is what this came of. Ops that wait for other ranks pass it on, some within others.
fn said<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a CommError> {
    // Errors that are passed on in the same words are no sources of each other.
    match error.downcast_ref::<ShardingError>() {
        Some(ShardingError::Comm(error)) => return Some(error),
        Some(ShardingError::Tensor(error)) => return said(error),
        _ => {}
    }
    error.downcast_ref::<CommError>().or_else(|| said(error.source()?))
}

fn of_phase(phase: &str) -> String {
    if phase.is_empty() { String::new() } else { format!(" of phase `{phase}`") }
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
            TrainError::NotFinite { step: 1, phase: String::new(), loss: f64::NAN, elsewhere: true },
            CheckpointError::Elsewhere { rank: 1, problem: "the disk is full".to_owned() }.into(),
        ];
        assert!(consequences.iter().all(TrainError::is_consequence));
        let missing = CommError::Environment { variable: "RANK", problem: "is not set".to_owned() };
        let own = [
            TrainError::from(missing.clone()),
            hook(Box::new(missing)).into(),
            TrainError::NotFinite { step: 1, phase: String::new(), loss: f64::NAN, elsewhere: false },
            TrainError::NoStep { images: 1, batch: 2 },
        ];
        assert!(!own.iter().any(TrainError::is_consequence));
    }
}
