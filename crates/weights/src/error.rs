//! Errors of weights that a training begins with.

use std::path::PathBuf;

use phalanx_checkpoint::CheckpointError;
use phalanx_run::RunError;
use phalanx_tensor::{ArrayError, TensorError};

/// The reason why weights cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The weights that a key of the configuration names cannot be used.
    #[error("{key}: {source}")]
    OfKey {
        /// The key.
        key: &'static str,
        /// The problem of the weights.
        #[source]
        source: Box<WeightError>,
    },
    /// The weights of a run do not fit a network.
    #[error("weights of network `{network}` from run {}: {problem}", run.display())]
    OfRun {
        /// The network.
        network: String,
        /// The run's folder.
        run: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file is not as it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Adapters have another form than the configuration says.
    #[error(
        "{} has adapters of rank {rank} and alpha {alpha}, and the configuration of {} and {}; set lora.rank={rank} lora.alpha={alpha}",
        folder.display(), configured_rank, configured_alpha
    )]
    AdapterForm {
        /// The folder.
        folder: PathBuf,
        /// The rank of its adapters.
        rank: usize,
        /// The numerator of their factor.
        alpha: f64,
        /// The configured rank.
        configured_rank: usize,
        /// The configured numerator.
        configured_alpha: f64,
    },
    /// Other layers have adapters than the model's.
    #[error(
        "{folder} has adapters of {there} layers, and the model of {here}; set lora.layers=[{}]",
        layers.iter().map(|layer| format!("\"{layer}\"")).collect::<Vec<_>>().join(",")
    )]
    AdaptedLayers {
        /// The folder.
        folder: String,
        /// The number of layers in the folder.
        there: usize,
        /// The number of layers of the model.
        here: usize,
        /// The last parts of the names of the folder's layers.
        layers: Vec<String>,
    },
    /// The tensors of a file cannot be read, or do not fit.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The folder of a run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl WeightError {
    /// Returns a function that makes the error of a key.
    pub(crate) fn of_key(key: &'static str) -> impl Fn(Self) -> Self {
        move |source| Self::OfKey { key, source: Box::new(source) }
    }
}

impl From<ArrayError> for WeightError {
    fn from(error: ArrayError) -> Self {
        Self::Tensor(error.into())
    }
}
