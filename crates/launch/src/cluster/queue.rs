//! Runs SLURM's `sbatch`, `squeue` and `scancel`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::ClusterError;

/// The entry of a job, or of a task of a job array, in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The job id; `ARRAY_TASK` for a task of a job array.
    pub id: String,
    /// `PENDING`, `RUNNING`, `COMPLETING`, …
    pub state: String,
    /// The reason why it is pending, or the nodes that it runs on.
    pub place: String,
    /// The elapsed time.
    pub elapsed: String,
    /// The remaining time.
    pub left: String,
}

/// The scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slurm;

impl Slurm {
    /// Submits a script. Returns the job id.
    ///
    /// # Errors
    /// If `sbatch` is missing or fails.
    pub fn submit(self, script: &Path) -> Result<u64, ClusterError> {
        let said = run("sbatch", Command::new("sbatch").arg("--parsable").arg(script))?;
        // `ID` or `ID;CLUSTER`.
        let id = said.trim().split(';').next().and_then(|id| id.parse().ok());
        id.ok_or(ClusterError::Answer { program: "sbatch", said })
    }

    /// Returns the entries of a job: one for each task of an array, none after its end.
    ///
    /// # Errors
    /// If `squeue` is missing or fails. An unknown job id is no error.
    pub fn queued(self, id: u64) -> Result<Vec<QueueEntry>, ClusterError> {
        let mut command = Command::new("squeue");
        command.args(["--noheader", "--array", "--format=%i|%T|%R|%M|%L", "--jobs", &id.to_string()]);
        match run("squeue", &mut command) {
            Ok(said) => said.lines().map(|line| parse(line.trim())).collect(),
            // SLURM forgets a job some minutes after its end.
            Err(ClusterError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Cancels a job. Its ranks finish the current step and save, within the cluster's `KillWait`.
    ///
    /// # Errors
    /// If `scancel` is missing or fails.
    pub fn cancel(self, id: u64) -> Result<(), ClusterError> {
        run("scancel", Command::new("scancel").arg(id.to_string())).map(drop)
    }
}

/// Parses a line of `squeue`.
///
/// # Errors
/// [`ClusterError`] if a field is missing.
pub fn parse(line: &str) -> Result<QueueEntry, ClusterError> {
    let parts: Vec<&str> = line.split('|').collect();
    let [id, state, place, elapsed, left] = parts[..] else {
        return Err(ClusterError::Answer { program: "squeue", said: line.to_owned() });
    };
    let [id, state, place, elapsed, left] = [id, state, place, elapsed, left].map(str::to_owned);
    Ok(QueueEntry { id, state, place, elapsed, left })
}

fn run(program: &'static str, command: &mut Command) -> Result<String, ClusterError> {
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } =
        output.map_err(|source| ClusterError::Missing { program, source })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(ClusterError::Refused { program, said: if said.is_empty() { status.to_string() } else { said } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_queue() {
        let queued = parse("7_1|PENDING|(Resources)|0:00|1:00:00").expect("sound");
        assert_eq!((queued.id.as_str(), queued.state.as_str()), ("7_1", "PENDING"));
        assert_eq!((queued.place.as_str(), queued.left.as_str()), ("(Resources)", "1:00:00"));
        assert!(parse("7|RUNNING").expect_err("too short").to_string().contains("7|RUNNING"));
    }
}
