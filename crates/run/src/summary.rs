//! `summary.json`: how a run ended, what it reached and what it cost.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic::write_aside;
use super::{EnergySummary, Machine, RunError};

/// The account of one rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankSummary {
    /// The rank.
    pub rank: usize,
    /// The most memory that its process held at once, in bytes, other ranks that are threads of it included; `null` where the
    /// system does not say.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes of parameters that it holds.
    pub parameter_bytes: u64,
    /// Bytes of gradients that it holds.
    pub gradient_bytes: u64,
    /// Bytes of optimizer state that it holds, with averages and what codecs and strategies keep.
    pub optimizer_bytes: u64,
    /// The most bytes of gathered parameters that it held at once, for the blocks that ran; 0 where parameters are not
    /// sharded. Gathering for samples is not counted.
    #[serde(default)]
    pub gathered_bytes: u64,
    /// Bytes that it sent to other ranks.
    pub bytes_sent: u64,
    /// Bytes that it received from other ranks.
    pub bytes_received: u64,
    /// Seconds in which it waited for communication and did nothing else.
    pub communication_exposed_seconds: f64,
    /// Seconds of communication that ran while it computed, in training steps.
    pub communication_hidden_seconds: f64,
    /// Seconds in which it waited for data.
    pub data_seconds: f64,
    /// Seconds of training steps, all of the above included.
    pub step_seconds: f64,
    /// Bytes that it sent in these steps: without those of the start, of evaluations and of checkpoints.
    #[serde(default)]
    pub step_bytes_sent: u64,
    /// CPU seconds of its process during the run. The first rank of a process accounts for the process.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// Page faults of its process that the system answered without a disk.
    #[serde(default)]
    pub minor_faults: Option<u64>,
    /// Page faults of its process that waited for a disk.
    #[serde(default)]
    pub major_faults: Option<u64>,
    /// Bytes that came from disks for its process.
    #[serde(default)]
    pub disk_read_bytes: Option<u64>,
    /// Bytes that went to disks for its process.
    #[serde(default)]
    pub disk_written_bytes: Option<u64>,
    /// Joules of its CPUs and its GPU, as far as [`Summary::energy`] has them.
    #[serde(default)]
    pub joules: Option<f64>,
    /// Its synchrony with the others, under strategies whose ranks do not take every step together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchrony: Option<SyncSummary>,
}

/// The synchrony of a rank with the others.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SyncSummary {
    /// The number of updates computed from values that were 0, 1, 2, … updates old, as seen by the server on this rank.
    pub staleness: Vec<u64>,
    /// The number of steps begun by a worker that was 0, 1, 2, … steps ahead of the slowest, as seen by the server on
    /// this rank.
    pub leads: Vec<u64>,
    /// Seconds in which this rank was held up by others.
    pub waited_seconds: f64,
    /// The most steps that any two workers ever were apart.
    pub clock_spread: u64,
    /// The number of meetings of this rank with others: averages, outer steps, exchanges; for a worker with servers,
    /// its steps.
    pub meetings: u64,
    /// The root mean square distance of the ranks from their mean, when it was last computed.
    pub consensus_distance: Option<f64>,
}

fn is_none(servers: &usize) -> bool {
    *servers == 0
}

/// A worker that has died without ending the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadRank {
    /// Its number when the run began.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The first step that the others shared without it, counted from 1.
    pub from_step: u64,
    /// The cause of its death, as seen by a supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A world that followed another one while training went on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorldChange {
    /// The last step that was done before.
    pub after_step: u64,
    /// Ranks that were lost or left, by their numbers in the run.
    pub left: Vec<usize>,
    /// Ranks that came, by their numbers in the run.
    pub came: Vec<usize>,
    /// Ranks that went on.
    pub ranks: usize,
    /// Seconds from when the change was noticed until the next step was done; `null` if none was.
    pub seconds: Option<f64>,
    /// Bytes of state that ranks gave each other for it.
    pub bytes: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// `finished`, or `interrupted`.
    pub status: String,
    /// The last step that was done, counted from the start of the run.
    pub step: u64,
    /// Passes over the training images.
    pub epochs: f64,
    /// The model.
    pub model: String,
    /// Numbers that are learnt.
    pub parameters: u64,
    /// Ranks that trained.
    pub world_size: usize,
    /// Ranks that only served.
    #[serde(default, skip_serializing_if = "is_none")]
    pub servers: usize,
    /// The strategy.
    pub strategy: String,
    /// Images over all ranks and a second of training, evaluation and checkpoints not counted.
    pub images_per_second: f64,
    /// Seconds since the program started or resumed.
    pub wall_seconds: f64,
    /// The last training loss, the test split's measures, and so on.
    pub metrics: Map<String, Value>,
    /// The energy that it took; `null` in summaries of earlier versions.
    #[serde(default)]
    pub energy: Option<EnergySummary>,
    /// The account of each rank. Dead ranks are missing.
    pub ranks: Vec<RankSummary>,
    /// Workers that have died without ending the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead: Vec<DeadRank>,
    /// The worlds that followed the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<WorldChange>,
    /// The machine of rank 0.
    pub machine: Machine,
}

impl Summary {
    /// Returns the command that continues an interrupted run in a folder.
    pub fn how_to_continue(&self, program: &str, folder: &Path) -> String {
        let (step, folder) = (self.step, folder.display());
        format!("interrupted after step {step}; continue with: {program} train --resume --out {folder}")
    }

    /// Writes the summary into place.
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
    /// If the file cannot be read or is no summary.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = std::fs::read(path).map_err(RunError::io("read", path))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Malformed { path: path.to_owned(), problem: error.to_string() })
    }
}
