//! The ends of ranks, in words: signals and the last lines of logs.

use std::path::Path;
use std::process::ExitStatus;

use phalanx_run::{FailureReport, Links};

/// The signal that ended a process.
pub(super) fn signal(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    return None;
}

/// The name of a signal, and what often causes it.
fn signal_name(number: i32) -> String {
    let name = match number {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL; was the machine out of memory?",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        24 => "SIGXCPU; the limit of CPU time, `ulimit -t`",
        25 => "SIGXFSZ; the limit of file sizes, `ulimit -f`",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

/// The end of a rank without a report, in words.
pub(super) fn describe_end(status: Option<ExitStatus>, logs: &Path, rank: usize) -> String {
    if let Some(number) = status.and_then(signal) {
        return format!("was killed by {}", signal_name(number));
    }
    let code = status.and_then(|status| status.code());
    let code = code.map_or_else(|| "without a code".to_owned(), |code| format!("with code {code}"));
    let tail = log_tail(&FailureReport::log_path(logs, rank));
    match write_error(logs) {
        None => format!("ended {code} and gave no reason{tail}"),
        Some(error) => {
            format!("ended {code}, and no reason can be written in {}: {error}{tail}", logs.display())
        }
    }
}

/// The error of writing a file in a folder of logs: a rank cannot tell its reason there either. `None` if files can be written.
fn write_error(logs: &Path) -> Option<std::io::Error> {
    let probe = logs.join(format!(".probe-{}", std::process::id()));
    let written = std::fs::write(&probe, [0; 1024]);
    let _ = std::fs::remove_file(&probe);
    written.err()
}

/// The end of a log, indented, for ranks that died without a report.
fn log_tail(log: &Path) -> String {
    let Ok(bytes) = Links::Refuse.read(log) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].iter().map(|line| format!("\n    {line}")).collect()
}
