//! The remaining time of a job.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use phalanx_environment::SlurmJob;

use super::ClusterError;

/// The time that the job of this process has left; `None` outside of a job, and where it has no end.
///
/// Newer versions of SLURM tell the end (`SLURM_JOB_END_TIME`); of others `squeue` is asked.
pub fn time_left() -> Option<Duration> {
    let job = SlurmJob::from_variables(&|name| std::env::var(name).ok())?;
    if let Some(end) = job.end {
        return Some(end.duration_since(SystemTime::now()).unwrap_or_default());
    }
    let asked = Command::new("squeue")
        .args(["--noheader", "--format=%L", "--jobs", &job.id])
        .stdin(Stdio::null())
        .output();
    asked.ok().and_then(|output| left(String::from_utf8_lossy(&output.stdout).trim()))
}

/// A time that is left, as SLURM writes it: `3:04`, `2:03:04`, `1-02:03:04`; other words mean that there is no end, or none yet.
pub fn left(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let [hours, minutes, seconds] = match parts[..] {
        [minutes, seconds] => [0, minutes, seconds],
        [hours, minutes, seconds] => [hours, minutes, seconds],
        _ => return None,
    };
    sum([(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)]).map(Duration::from_secs)
}

/// Adds numbers of units in seconds; `None` on overflow.
fn sum(all: [(u64, u64); 4]) -> Option<u64> {
    all.iter().try_fold(0_u64, |sum, (number, unit)| sum.checked_add(number.checked_mul(*unit)?))
}

/// The seconds of a time as it is asked of SLURM: `30` or `30:00` minutes, `2:00:00` hours, `1-12`, `1-12:30` or `1-12:30:00` days.
///
/// # Errors
/// [`ClusterError::Time`] if it is none, or no time at all.
pub fn seconds_of(text: &str) -> Result<u64, ClusterError> {
    let wrong = || ClusterError::Time(text.to_owned());
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().map_err(|_| wrong())?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> =
        clock.split(':').map(|part| part.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    let (hours, minutes, seconds) = match (days, &parts[..]) {
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return Err(wrong()),
    };
    let sum = sum([(days.unwrap_or(0), 86_400), (hours, 3600), (minutes, 60), (seconds, 1)]);
    sum.filter(|seconds| *seconds > 0).ok_or_else(wrong)
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
            ("300000000000000-0:0:0", None),
            ("", None),
        ] {
            assert_eq!(left(text), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn times_that_are_asked_for() {
        for (text, seconds) in [
            ("30", 1800),
            ("1:30", 90),
            ("2:00:00", 7200),
            ("1-12", 129_600),
            ("1-0:30", 88_200),
            ("1-00:00:01", 86_401),
        ] {
            assert_eq!(seconds_of(text).expect(text), seconds, "{text}");
        }
        for text in ["", "0", "soon", "1:2:3:4", "-1", "99999999999999999999", "1-"] {
            let error = seconds_of(text).expect_err(text).to_string();
            assert!(error.contains("h:mm:ss"), "{text}: {error}");
        }
    }
}
