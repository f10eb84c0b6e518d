//! Signals that ask the program to end: how often they came, and which came last.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::error::CliError;
use crate::console::err;
use phalanx_launch::cluster::time_left;
use phalanx_run::StopFlag;

/// The interval at which signals are polled.
const POLL: Duration = Duration::from_millis(20);

/// The signals: Ctrl-C, a scheduler's or launcher's request, a terminal that was closed.
const SIGNALS: &[i32] = &[
    SIGINT,
    SIGTERM,
    #[cfg(unix)]
    signal_hook::consts::SIGHUP,
    // SLURM's warning that the time is up soon (`--signal`), by whichever of them a cluster sends.
    #[cfg(unix)]
    signal_hook::consts::SIGUSR1,
    #[cfg(unix)]
    signal_hook::consts::SIGUSR2,
];

/// The signals since the program listens. Clones share them.
///
/// Only Ctrl-C counts every time it comes. Schedulers repeat themselves: SLURM warns of a job's end, and sends `TERM` twice within
/// milliseconds when it preempts a job, none of which asks for more than the first did. Who wants a program to end at once, and has
/// no terminal, has `KILL`.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupts {
    count: Arc<AtomicUsize>,
    /// True if this process's job is nearly out of time, which counts as the first signal if it comes before one.
    is_late: Arc<AtomicBool>,
    last: Arc<AtomicI32>,
}

/// The signal of a write beyond the limit of file sizes (`ulimit -f`). By default it ends the process.
#[cfg(unix)]
const FILE_SIZE: i32 = 25;

/// Makes writes beyond the limit of file sizes fail with an error, which names the file, instead of ending the process.
pub(super) fn survive_file_size_limit() -> Result<(), CliError> {
    #[cfg(unix)]
    signal_hook::flag::register(FILE_SIZE, Arc::default()).map_err(CliError::failed)?;
    Ok(())
}

impl Interrupts {
    /// Listens from now on.
    pub(super) fn listen() -> Result<Self, CliError> {
        Self::listen_and(|_| {})
    }

    /// Listens for a process that is a rank itself: the first signal raises `stop`, the second ends the process.
    pub(super) fn stop_first(stop: &StopFlag) -> Result<Self, CliError> {
        let stop = stop.clone();
        Self::listen_and(move |interrupts| match interrupts.count() {
            1 => {
                if stop.raise() {
                    announce();
                }
            }
            _ => std::process::exit(interrupts.exit_code().into()),
        })
    }

    /// Listens for a process that is a rank among others and may leave these: the first signal raises `leave`, the second ends the
    /// process.
    pub(super) fn leave_first(leave: &StopFlag) -> Result<Self, CliError> {
        let leave = leave.clone();
        Self::listen_and(move |interrupts| {
            if interrupts.count() > 1 {
                std::process::exit(interrupts.exit_code().into());
            }
            leave.raise();
        })
    }

    fn listen_and(heard: impl Fn(&Self) + Send + 'static) -> Result<Self, CliError> {
        let own = Self::default();
        let outlives = outlives_its_terminal();
        let heeded = SIGNALS.iter().filter(|signal| !(outlives && **signal == HANGUP));
        let flags = heeded.map(|signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(*signal, flag.clone()).map(|_| (*signal, flag))
        });
        let flags = flags.collect::<Result<Vec<_>, _>>().map_err(CliError::failed)?;
        let interrupts = own.clone();
        let listening = move || {
            loop {
                for (signal, flag) in &flags {
                    if flag.swap(false, Ordering::Relaxed) && interrupts.is_news(*signal) {
                        interrupts.last.store(*signal, Ordering::Relaxed);
                        interrupts.count.fetch_add(1, Ordering::Relaxed);
                        heard(&interrupts);
                    }
                }
                std::thread::sleep(POLL);
            }
        };
        // Never joined: it listens for as long as there is a process.
        std::thread::Builder::new()
            .name("phalanx-signals".into())
            .spawn(listening)
            .map_err(CliError::failed)?;
        Ok(own)
    }

    /// Returns true if a signal asks for more than the signals before it.
    fn is_news(&self, signal: i32) -> bool {
        signal == SIGINT || self.count() == 0
    }

    /// Listens for a process whose ranks another one holds by a leash, for signals that reach it nevertheless: those that are meant
    /// for all processes of a job or a service. Each raises `stop`; when all are to end at once, the other one says.
    pub(super) fn stop_quietly(stop: &StopFlag) -> Result<Self, CliError> {
        let stop = stop.clone();
        Self::listen_and(move |_| {
            stop.raise();
        })
    }

    /// Counts as Ctrl-C, which a terminal in raw mode sends as a key.
    pub(super) fn interrupt(&self) {
        self.last.store(SIGINT, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts as the first signal too that the time of this process's job is nearly up. What then comes as its scheduler's warning
    /// asks for nothing more.
    pub(super) fn heed_the_end(&self, margin: Duration) -> Result<(), CliError> {
        let own = self.clone();
        before_the_end(margin, move || {
            let is_first = own.count() == 0;
            if is_first {
                own.last.store(SIGINT, Ordering::Relaxed);
                own.is_late.store(true, Ordering::Relaxed);
            }
            is_first
        })
    }

    /// Returns the number of requests that the program end.
    pub(super) fn count(&self) -> usize {
        let late = usize::from(self.is_late.load(Ordering::Relaxed));
        self.count.load(Ordering::Relaxed).max(late)
    }

    /// The exit code of a program that the last signal has ended, as shells know it: 130 for Ctrl-C, 143 for TERM.
    pub(super) fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.last.load(Ordering::Relaxed)).unwrap_or(u8::MAX)
    }
}

/// Raises `stop` so long before the end of the time of this process's job that there is time to save; nothing where there is no
/// job, or no end.
pub(super) fn stop_before_the_end(stop: &StopFlag, margin: Duration, tells: bool) -> Result<(), CliError> {
    let stop = stop.clone();
    before_the_end(margin, move || stop.raise() && tells)
}

/// Calls `tell` early enough before the end of this process's job to save, and prints that if `tell` returns true.
fn before_the_end(margin: Duration, tell: impl FnOnce() -> bool + Send + 'static) -> Result<(), CliError> {
    let Some(left) = time_left().filter(|_| !margin.is_zero()) else { return Ok(()) };
    // Of a short job no more than a quarter is kept for saving.
    let wait = left - margin.min(left / 4);
    let waiting = move || {
        std::thread::sleep(wait);
        if tell() {
            err("\nthe job's time is up soon: a step that is under way is finished, and saved");
        }
    };
    // Never joined: a run that is finished earlier ends the process.
    std::thread::Builder::new().name("phalanx-limit".into()).spawn(waiting).map_err(CliError::failed)?;
    Ok(())
}

/// The signal of a terminal that was closed (POSIX).
const HANGUP: i32 = 1;

/// Returns true if the parent of this process makes it ignore a closed terminal, as `nohup` does. (A shell's script
/// makes all background jobs ignore interrupts, which is no request.) Known on Linux alone (proc_pid_status(5)).
fn outlives_its_terminal() -> bool {
    let says_nothing = !std::io::stdout().is_terminal() && !std::io::stderr().is_terminal();
    says_nothing && ignores(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), HANGUP)
}

fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Says what a first signal does.
pub(super) fn announce() {
    err("\nasked to stop: a step that is under way is finished first; interrupt again to end at once");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_from_the_start_is_told_by_the_system() {
        let status = "Name:\tphalanx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000004\n";
        let ignored: Vec<i32> = (1..=64).filter(|signal| ignores(status, *signal)).collect();
        assert_eq!(ignored, [1, 2, 13]);
        assert!(!ignores("", HANGUP) && !ignores("SigIgn:\tnone\n", HANGUP));
    }

    #[test]
    fn schedulers_that_repeat_themselves_are_heard_once() {
        const TERM: i32 = SIGTERM;
        // Whether each signal of a row counts; the first is that a job's time is nearly up, where it is 0.
        for row in [
            [(TERM, true), (TERM, false), (SIGINT, true)],
            [(10, true), (TERM, false), (TERM, false)],
            [(SIGINT, true), (TERM, false), (SIGINT, true)],
            [(0, true), (10, false), (TERM, false)],
        ] {
            let interrupts = Interrupts::default();
            for (signal, counts) in row {
                if signal == 0 {
                    interrupts.is_late.store(true, Ordering::Relaxed);
                    continue;
                }
                assert_eq!(interrupts.is_news(signal), counts, "{row:?}");
                if counts {
                    interrupts.count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
