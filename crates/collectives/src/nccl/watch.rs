//! The watch over a world for threads that wait for a GPU: waits end when a rank dies or time is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::control::ControlPlane;
use crate::engine::Backend;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};

/// The time for the control plane to tell why NCCL failed, before NCCL's own text counts: it often notices the loss of a rank
/// first.
const VERDICT: Duration = Duration::from_millis(1500);

/// The number of polls, yielding the core in between, before a waiting thread sleeps between polls.
const LOOKS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(50);
const LONG_SLEEP: Duration = Duration::from_millis(2);

/// This rank's state of its world, and its means to report.
pub(super) struct Watch {
    failure: Arc<Failure>,
    control: Arc<ControlPlane>,
    timeout: Duration,
    /// This rank in the world.
    own: usize,
    /// The number of operations so far.
    count: AtomicU64,
}

impl Watch {
    pub(super) fn of(backend: &Backend) -> Self {
        Self {
            failure: backend.shared.failure.clone(),
            control: backend.shared.control.clone(),
            timeout: backend.shared.timeout,
            own: backend.members[backend.rank],
            count: AtomicU64::new(0),
        }
    }

    /// Counts an operation.
    pub(super) fn next(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn told(&self, operation: &'static str, cause: Cause) -> CommError {
        cause.error(operation.to_owned(), self.count.load(Ordering::Relaxed).saturating_sub(1))
    }

    /// Returns an error if the world is broken.
    pub(super) fn look(&self, operation: &'static str) -> Result<()> {
        match self.failure.is_set() {
            true => Err(self.told(operation, self.failure.get().unwrap_or(Cause::Lost(self.own)))),
            false => Ok(()),
        }
    }

    /// Returns the error of a local failure: the reason that the control plane knows, or else this rank's own, which is reported to
    /// the others, as they may wait for it.
    pub(super) fn fail(&self, operation: &'static str, problem: String) -> CommError {
        let limit = self.control.verdict_after(VERDICT);
        if let Some(cause) = self.failure.wait(limit) {
            return self.told(operation, cause);
        }
        let error = CommError::Nccl { operation, problem };
        self.control.report(self.own, Cause::Aborted(self.own, error.to_string()));
        error
    }

    /// Calls `wake` when the world breaks.
    pub(super) fn on_break(&self, wake: impl Fn() + Send + 'static) {
        self.failure.on_break(wake);
    }

    /// Begins a wait.
    pub(super) fn wait(&self, operation: &'static str) -> Wait<'_> {
        Wait { watch: self, operation, since: Instant::now(), looks: 0, sleep: SLEEP }
    }
}

/// A wait between polls.
pub(super) struct Wait<'a> {
    watch: &'a Watch,
    operation: &'static str,
    since: Instant,
    looks: u32,
    sleep: Duration,
}

impl Wait<'_> {
    /// Returns this wait for the watchdog, which no caller waits for.
    pub(super) fn at_leisure(self) -> Self {
        Self { looks: LOOKS, sleep: LONG_SLEEP, ..self }
    }

    /// Rests until the next poll; an error if the wait has become pointless.
    pub(super) fn rest(&mut self) -> Result<()> {
        self.watch.look(self.operation)?;
        if self.looks < LOOKS {
            self.looks += 1;
            std::thread::yield_now();
            return Ok(());
        }
        if self.since.elapsed() > self.watch.timeout {
            let seconds = self.watch.timeout.as_secs_f64();
            return Err(self.watch.fail(self.operation, format!("was not done after {seconds} s")));
        }
        std::thread::sleep(self.sleep);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn watches(ranks: &[crate::Communicator]) -> Vec<Watch> {
        let of = |rank: &crate::Communicator| rank.with_backend("test", |backend| Ok(Watch::of(backend)));
        ranks.iter().map(of).collect::<Result<_>>().expect("a sound world")
    }

    #[test]
    fn a_failure_reaches_who_waits_on_other_ranks() {
        let ranks = threads(2).expect("threads");
        let [own, other]: [Watch; 2] = watches(&ranks).try_into().ok().expect("two");
        assert_eq!(own.look("barrier"), Ok(()));
        assert_eq!(own.wait("barrier").rest(), Ok(()));
        let error = own.fail("barrier", "no cable".to_owned());
        assert_eq!(error, CommError::Nccl { operation: "barrier", problem: "no cable".to_owned() });
        let told = other.wait("barrier").rest().expect_err("the other rank has failed");
        assert_eq!(told, CommError::Aborted { rank: 0, reason: "barrier by NCCL: no cable".to_owned() });
        // The first failure of a world counts.
        assert_eq!(other.fail("barrier", "later".to_owned()), told);
    }

    #[test]
    fn waiting_ends_when_time_is_up() {
        let ranks = threads(1).expect("threads");
        let mut watch = watches(&ranks).remove(0);
        watch.timeout = Duration::ZERO;
        let mut wait = watch.wait("all-reduce");
        let error = loop {
            if let Err(error) = wait.rest() {
                break error;
            }
        };
        assert!(error.to_string().contains("all-reduce by NCCL: was not done after 0 s"), "{error}");
    }
}
