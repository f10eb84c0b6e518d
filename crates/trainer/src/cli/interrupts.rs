//! Signals that ask the program to end: how often they came, and which came last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::CliError;
use crate::cluster::time_left;
use crate::console::err;
use crate::launch::StopFlag;

/// How often is looked whether a signal has come; signals of one kind within that time count once.
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

/// What has come since the program listens. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupts {
    count: Arc<AtomicUsize>,
    /// Whether the time of this process's job is nearly up, which counts as the first signal if it comes before one.
    is_late: Arc<AtomicBool>,
    last: Arc<AtomicI32>,
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
        let flags = SIGNALS.iter().map(|signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(*signal, flag.clone()).map(|_| (*signal, flag))
        });
        let flags = flags.collect::<Result<Vec<_>, _>>().map_err(CliError::failed)?;
        let interrupts = own.clone();
        let listening = move || {
            loop {
                for (signal, flag) in &flags {
                    if flag.swap(false, Ordering::Relaxed) {
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

    /// How often it was asked that the program end.
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

/// Calls `tell` so long before the end of the time of this process's job that there is time to save, and says so if that has told
/// anybody.
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

/// Says what a first signal does.
pub(super) fn announce() {
    err("\nasked to stop: a step that is under way is finished first; interrupt again to end at once");
}
