//! How long a job still has.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// The time that the job of this process has left; `None` outside of a job, and where it has no end.
///
/// Newer versions of SLURM tell the end (`SLURM_JOB_END_TIME`); of others `squeue` is asked.
pub fn time_left() -> Option<Duration> {
    let job = std::env::var("SLURM_JOB_ID").ok()?;
    std::env::var_os("SLURM_STEP_ID")?;
    if let Some(end) = std::env::var("SLURM_JOB_END_TIME").ok().and_then(|end| end.trim().parse().ok()) {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
        return Some(end.duration_since(SystemTime::now()).unwrap_or_default());
    }
    let asked = Command::new("squeue")
        .args(["--noheader", "--format=%L", "--jobs", &job])
        .stdin(Stdio::null())
        .output();
    asked.ok().and_then(|output| left(String::from_utf8_lossy(&output.stdout).trim()))
}

/// A time that is left, as SLURM writes it: `3:04`, `2:03:04`, `1-02:03:04`; other words mean that there is no end, or none yet.
fn left(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let seconds = match parts[..] {
        [minutes, seconds] => 60 * minutes + seconds,
        [hours, minutes, seconds] => 3600 * hours + 60 * minutes + seconds,
        _ => return None,
    };
    Some(Duration::from_secs(86_400 * days + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_slurm() {
        for (text, seconds) in [
            ("0:30", Some(30)),
            ("2:03:04", Some(7384)),
            ("1-00:00:01", Some(86_401)),
            ("UNLIMITED", None),
            ("INVALID", None),
            ("", None),
        ] {
            assert_eq!(left(text), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
