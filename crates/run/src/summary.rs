//! `summary.json`: the outcome of a run, its metrics and its cost.

use std::path::Path;

use phalanx_data::Links;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic::write_aside;
use super::{EnergySummary, Machine, RunError, WeightsSummary};

/// The resource use of one rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankSummary {
    /// The rank.
    pub rank: usize,
    /// The peak memory of its process in bytes, including other ranks that are threads of it; `null` if unknown.
    pub peak_memory_bytes: Option<u64>,
    /// The bytes of parameters that it holds.
    pub parameter_bytes: u64,
    /// The bytes of gradients that it holds.
    pub gradient_bytes: u64,
    /// The bytes of optimizer state that it holds, including weight averages and the state of codecs and strategies.
    pub optimizer_bytes: u64,
    /// The peak bytes of gathered parameters; 0 if parameters are not sharded. Gathering for samples is not counted.
    #[serde(default)]
    pub gathered_bytes: u64,
    /// The bytes sent to other ranks.
    pub bytes_sent: u64,
    /// The bytes received from other ranks.
    pub bytes_received: u64,
    /// The seconds of exposed communication: the rank waited and did nothing else.
    pub communication_exposed_seconds: f64,
    /// The seconds of hidden communication in training steps: it overlapped with compute.
    pub communication_hidden_seconds: f64,
    /// The seconds spent waiting for data.
    pub data_seconds: f64,
    /// The seconds of training steps, including all of the above.
    pub step_seconds: f64,
    /// The bytes sent in training steps, without startup, evaluations and checkpoints.
    #[serde(default)]
    pub step_bytes_sent: u64,
    /// The CPU seconds of its process during the run. Only the first rank of a process has this value.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// The minor page faults of its process.
    #[serde(default)]
    pub minor_faults: Option<u64>,
    /// The major page faults of its process.
    #[serde(default)]
    pub major_faults: Option<u64>,
    /// The bytes that its process read from disks.
    #[serde(default)]
    pub disk_read_bytes: Option<u64>,
    /// The bytes that its process wrote to disks.
    #[serde(default)]
    pub disk_written_bytes: Option<u64>,
    /// The known energy of its CPUs and GPU in joules; see [`Summary::energy`].
    #[serde(default)]
    pub joules: Option<f64>,
    /// The synchrony statistics, under strategies whose ranks do not take every step together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchrony: Option<SyncSummary>,
    /// The passes of its stages, if the model has stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<StagesSummary>,
}

/// The passes of a rank that computes some stages of a model. On GPUs times are those in which the host gives out work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StagesSummary {
    /// The seconds that this rank waited for values and gradients of other stages: its bubble, and what messages take.
    pub waited_seconds: f64,
    /// Its passes in training steps, by stage and kind.
    pub passes: Vec<PassSummary>,
}

/// The passes of a kind over a stage.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PassSummary {
    /// The stage; under `interleaved` a rank has several.
    pub stage: usize,
    /// The kind: `forward`, `backward`, `backward of inputs` or `backward of weights`.
    pub pass: String,
    /// Their number.
    pub passes: u64,
    /// Their seconds, without the waiting.
    pub seconds: f64,
}

/// The synchrony of a rank with the other ranks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SyncSummary {
    /// The histogram of staleness: updates from values that were 0, 1, 2, … updates old, counted by this rank's server.
    pub staleness: Vec<u64>,
    /// The histogram of leads: steps begun by a worker that was 0, 1, 2, … steps ahead of the slowest, counted by this
    /// rank's server.
    pub leads: Vec<u64>,
    /// The seconds that this rank waited for other ranks.
    pub waited_seconds: f64,
    /// The largest difference in steps between any two workers.
    pub clock_spread: u64,
    /// The number of synchronisations of this rank: averages, outer steps or exchanges; steps for a worker with
    /// servers.
    pub meetings: u64,
    /// The root mean square distance of the ranks from their mean, as last computed.
    pub consensus_distance: Option<f64>,
}

/// The best evaluation of a run, by one of its measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// The measure, as in the metrics: `test_accuracy`.
    pub measure: String,
    /// Its step.
    pub step: u64,
    /// Its value.
    pub value: f64,
}

fn is_none(servers: &usize) -> bool {
    *servers == 0
}

/// A worker that died without ending the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadRank {
    /// Its rank number when the run began.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The first step without it, counted from 1.
    pub from_step: u64,
    /// The cause of its death, as reported by a supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A rank that left the run on request: of a user, or by a signal to this rank alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftRank {
    /// Its rank number when the run began, or the number that it joined under.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The first step without it, counted from 1.
    pub from_step: u64,
}

/// A change of the set of ranks during training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorldChange {
    /// The last step before the change.
    pub after_step: u64,
    /// The numbers of ranks that were lost or left, ascending.
    pub left: Vec<usize>,
    /// The numbers of ranks that joined, ascending.
    pub came: Vec<usize>,
    /// The number of ranks after the change.
    pub ranks: usize,
    /// The seconds from the detection of the change to the end of the next step; `null` if no step followed.
    pub seconds: Option<f64>,
    /// The bytes of state that ranks transferred.
    pub bytes: u64,
}

/// The rate of the units that samples consist of.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UnitRate {
    /// The unit, such as `tokens`.
    pub unit: String,
    /// The number per second.
    pub per_second: f64,
}

/// The arithmetic of a rank: products, convolutions and attention.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ArithmeticRate {
    /// Billions of floating-point operations per second.
    pub gflops: f64,
    /// The share of the peak of its device; `null` if the peak is unknown.
    pub peak_share: Option<f64>,
}

/// The summary of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// `finished`, or `interrupted`.
    pub status: String,
    /// The last completed step, counted from the start of the run.
    pub step: u64,
    /// The number of epochs.
    pub epochs: f64,
    /// A description of the model.
    pub model: String,
    /// The weights that the run began with, if they were not random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsSummary>,
    /// The number of trainable parameters.
    pub parameters: u64,
    /// The number of ranks that trained.
    pub world_size: usize,
    /// The number of ranks that were only parameter servers.
    #[serde(default, skip_serializing_if = "is_none")]
    pub servers: usize,
    /// The strategy.
    pub strategy: String,
    /// The samples per second over all ranks, without evaluations and checkpoints.
    #[serde(alias = "images_per_second")]
    pub samples_per_second: f64,
    /// The rate of the units that the weights of samples count, such as tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<UnitRate>,
    /// The arithmetic of rank 0 in its steps; missing if nothing was multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<ArithmeticRate>,
    /// The seconds since the program started or resumed.
    pub wall_seconds: f64,
    /// The last metrics: training loss, test metrics and others.
    pub metrics: Map<String, Value>,
    /// The measure that leads, as in the metrics: `test_accuracy` of a classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// The best evaluation, if evaluations were compared (`checkpoint.best`, `train.patience`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestEvaluation>,
    /// True if the run ended before its planned end, because evaluations did not improve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
    /// The energy of the run; `null` in summaries of earlier versions.
    #[serde(default)]
    pub energy: Option<EnergySummary>,
    /// The resource use of each rank. Dead ranks are missing.
    pub ranks: Vec<RankSummary>,
    /// The workers that died without ending the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead: Vec<DeadRank>,
    /// The ranks that left on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<LeftRank>,
    /// The changes of the set of ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<WorldChange>,
    /// The machine of rank 0.
    pub machine: Machine,
}

impl Summary {
    /// Returns the command that continues an interrupted run in a folder.
    pub fn how_to_continue(&self, program: &str, folder: &Path) -> String {
        let (step, folder) = (self.step, folder.display().to_string());
        // An option would otherwise be read in place of a name that begins with a dash.
        let equals = if folder.starts_with('-') { '=' } else { ' ' };
        format!(
            "interrupted after step {step}; continue with: {program} train --resume --out{equals}{folder}"
        )
    }

    /// Writes the summary atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let malformed = |error: serde_json::Error| RunError::Malformed {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(malformed)?;
        bytes.push(b'\n');
        write_aside(path, &bytes).map_err(RunError::io("write", path))
    }

    /// Reads a summary.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = Links::Refuse.read(path).map_err(RunError::io("read", path))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Malformed { path: path.to_owned(), problem: error.to_string() })
    }
}
