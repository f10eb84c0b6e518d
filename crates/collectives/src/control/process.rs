//! Processes of ranks. On one machine, ranks can tell whether a process has ended.

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

/// The system's error code of a process that ended after one of its files was opened (`ESRCH`).
const NO_SUCH_PROCESS: i32 = 3;

/// A process of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The machine; of processes of another one nothing is known.
    host: String,
    id: u32,
    /// Its start time in ticks since the start of the machine, which tells reused process numbers apart. `None` if unknown.
    began: Option<u64>,
}

/// The state letters of a process and of its threads, with their numbers and names (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessSnapshot {
    pub(crate) id: u32,
    pub(crate) state: char,
    pub(crate) threads: Vec<(u32, String, char)>,
}

impl Process {
    /// Returns this process, on the machine named `host`.
    pub(crate) fn this(host: String) -> Self {
        let id = std::process::id();
        let began = stat_of(id).ok().and_then(|stat| parse(&stat)).map(|(_, began)| began);
        Self { host, id, began }
    }

    /// True if a process of the machine `host` can tell that this process has ended. The system closes the files of a killed
    /// process a moment before.
    pub(crate) fn has_ended(&self, host: &str) -> bool {
        let Some(began) = self.began.filter(|_| self.host == host) else { return false };
        match stat_of(self.id) {
            Ok(stat) => parse(&stat)
                .is_some_and(|(state, of_number)| matches!(state, 'Z' | 'X' | 'x') || of_number != began),
            Err(error) => {
                error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS)
            }
        }
    }

    /// Returns the states of this process and its threads, as seen from the machine `host`. `None` if it has ended or is on another
    /// machine.
    pub(crate) fn snapshot(&self, host: &str) -> Option<ProcessSnapshot> {
        let began = self.began.filter(|_| self.host == host)?;
        let (state, of_number) = parse(&stat_of(self.id).ok()?)?;
        if of_number != began {
            return None;
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id)).into_iter().flatten();
        let threads = threads.filter_map(|entry| {
            let entry = entry.ok()?;
            let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).ok();
            let (state, _) = parse(&read("stat")?)?;
            let id = entry.file_name().to_str()?.parse().ok()?;
            Some((id, read("comm")?.trim().to_owned(), state))
        });
        Some(ProcessSnapshot { id: self.id, state, threads: threads.collect() })
    }

    /// The machine.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

/// Reads Linux's state of a process. Other systems do not have the file, so the state is unknown.
fn stat_of(id: u32) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{id}/stat"))
}

/// The state of a process and when it began (fields 3 and 22 of proc_pid_stat(5)). The name before them may contain anything.
fn parse(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_and_the_start_are_found_after_any_name() {
        let stat = "42 (a) R 1 (b) Z 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse(stat), Some(('Z', 987_654)));
        assert_eq!([parse(""), parse("42 (a) R 1 2")], [None, None]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_ended_when_it_is_killed_and_never_for_another_machine() {
        let own = Process::this("here".into());
        assert!(own.began.is_some() && !own.has_ended("here"));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
        let stat = stat_of(child.id()).expect("it is there");
        let other = Process { id: child.id(), began: parse(&stat).map(|found| found.1), ..own.clone() };
        assert!(!other.has_ended("here"));
        let reused = Process { began: other.began.map(|began| began + 1), ..other.clone() };
        assert!(reused.has_ended("here"), "its number is that of another one now");
        child.kill().expect("it lives");
        // Until its parent has waited for it, it exists as an ended process.
        while !other.has_ended("here") {
            std::thread::yield_now();
        }
        child.wait().expect("it is dead");
        assert!(other.has_ended("here") && !other.has_ended("there"));
        assert!(!Process { began: None, ..other }.has_ended("here"), "nothing is known of it");
    }
}
