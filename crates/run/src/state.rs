//! `state.json`: the current state of a run.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::replace;
use super::process::is_process_alive;

/// The activity of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunActivity {
    /// The run takes steps, evaluates, or saves.
    #[default]
    Training,
    /// The run takes no step until it is resumed.
    Paused,
    /// The run has ended and written its summary.
    Ended,
    /// The run has failed.
    Failed,
}

/// The state and the description of a run. Rank 0 writes it about every second while the run takes steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunState {
    /// The activity.
    pub doing: RunActivity,
    /// The last completed step.
    pub step: u64,
    /// The last step of the run.
    pub total: u64,
    /// The number of steps in an epoch.
    pub steps_per_epoch: u64,
    /// A description of the model.
    pub model: String,
    /// The number of trainable parameters.
    pub parameters: u64,
    /// A description of the data.
    pub data: String,
    /// The number of ranks that train.
    pub world_size: usize,
    /// The number of ranks that are only parameter servers.
    pub servers: usize,
    /// The number of compute threads of each rank.
    pub threads: usize,
    /// The device.
    pub device: String,
    /// The strategy.
    pub strategy: String,
    /// The measure that leads, as in the metrics: `test_accuracy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// The host of rank 0.
    pub host: String,
    /// The process id of rank 0.
    pub process: u32,
    /// The number of rendezvous since this attempt began. If another rank took over from rank 0, the fields above
    /// describe that rank.
    #[serde(default)]
    pub meetings: u64,
    /// The host of each rank, by rank number, in elastic runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<usize, String>,
}

impl RunState {
    /// Writes the state atomically, without syncing to disk: it need not survive a crash of the machine.
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
        replace(path, &bytes).map_err(RunError::io("write", path))
    }

    /// Reads a state.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = Links::Refuse.read(path).map_err(RunError::io("read", path))?;
        let malformed = |error: serde_json::Error| RunError::Malformed {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        serde_json::from_slice(&bytes).map_err(malformed)
    }

    /// Returns true if the process of rank 0 is alive; `None` if it is on another host or cannot be inspected.
    pub fn is_alive(&self) -> Option<bool> {
        if self.host != super::machine::host_name() {
            return None;
        }
        is_process_alive(self.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_knows_whether_its_process_lives() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("state.json");
        let host = super::super::machine::host_name();
        let own = RunState { step: 3, total: 9, host, process: std::process::id(), ..RunState::default() };
        own.write(&path).expect("writes");
        assert_eq!(RunState::read(&path).expect("reads"), own);
        assert_eq!(RunState { host: "elsewhere".into(), ..own.clone() }.is_alive(), None);
        #[cfg(unix)]
        {
            assert_eq!(own.is_alive(), Some(true));
            let mut ended = std::process::Command::new("true").spawn().expect("starts");
            let other = RunState { process: ended.id(), ..own };
            if cfg!(target_os = "linux") {
                while other.is_alive() == Some(true) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            ended.wait().expect("ends");
            assert_eq!(other.is_alive(), Some(false));
        }
    }
}
