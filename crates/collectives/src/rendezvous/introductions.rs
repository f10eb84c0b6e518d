//! Callers that introduce themselves at a port: how many at a time, which of them gives way, and what is logged of those refused.
//!
//! A stranger can open connections and stay silent. So the oldest introduction gives way to a new caller, a pause follows an error of the
//! system, such as no descriptor being left, and refusals are logged once a second.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// The time that an introduction has before it may give way. One of a rank takes milliseconds.
pub(crate) const GRACE: Duration = Duration::from_millis(200);

/// The pause after a failed accept.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The time between two log lines of refusals.
const SUMMARY: Duration = Duration::from_secs(1);

/// Returns the most introductions at a time: `most`, or fewer where this process may open few files. Three quarters of these remain for
/// the connections of the world.
pub(crate) fn most_introductions(most: usize) -> usize {
    #[cfg(target_os = "linux")]
    if let Some(files) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        return most.min(usize::try_from(files).unwrap_or(most) / 4).max(8);
    }
    most
}

/// Introductions on tasks of tokio, the oldest first.
pub(crate) struct Introductions {
    most: usize,
    tasks: VecDeque<Task>,
}

struct Task {
    since: Instant,
    handle: AbortHandle,
}

impl Introductions {
    /// Allows `most` introductions at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, tasks: VecDeque::new() }
    }

    /// Makes room for one more introduction: the oldest is ended if there are too many. Returns false if all of them are too young.
    pub(crate) fn make_room(&mut self) -> bool {
        self.tasks.retain(|task| !task.handle.is_finished());
        if self.tasks.len() < self.most {
            return true;
        }
        let is_old = self.tasks.front().is_some_and(|oldest| oldest.since.elapsed() > GRACE);
        if is_old && let Some(oldest) = self.tasks.pop_front() {
            oldest.handle.abort();
        }
        is_old
    }

    /// Adds an introduction that has begun.
    pub(crate) fn add(&mut self, handle: AbortHandle) {
        self.tasks.push_back(Task { since: Instant::now(), handle });
    }
}

/// Logs refused callers: the first at once, and then at most one line a second.
pub(crate) struct RefusalLog {
    /// The port, in words.
    port: &'static str,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    last: Option<Instant>,
    /// Refusals since the last line.
    unlogged: usize,
}

impl RefusalLog {
    /// Creates the log of a port.
    pub(crate) fn new(port: &'static str) -> Self {
        Self { port, state: Mutex::default() }
    }

    /// Logs a refused caller, or counts it for the next line.
    pub(crate) fn add(&self, from: &dyn Display, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| last.elapsed() < SUMMARY) {
            state.unlogged += 1;
            return;
        }
        let before = std::mem::take(&mut state.unlogged);
        state.last = Some(Instant::now());
        drop(state);
        tracing::warn!(%from, %reason, before, "{}: refused a connection", self.port);
    }
}

impl Drop for RefusalLog {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.unlogged > 0 {
            tracing::warn!("{}: refused {} further connections", self.port, state.unlogged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_gives_way_once_it_had_its_time() {
        let mut introductions = Introductions::new(2);
        let mut tasks = Vec::new();
        for _ in 0..2 {
            assert!(introductions.make_room());
            let task = tokio::spawn(std::future::pending::<()>());
            introductions.add(task.abort_handle());
            tasks.push(task);
        }
        assert!(!introductions.make_room(), "both are young");
        tokio::time::sleep(GRACE + Duration::from_millis(20)).await;
        assert!(introductions.make_room());
        let first = tasks.remove(0).await;
        assert!(first.is_err_and(|error| error.is_cancelled()));
        assert!(!tasks[0].is_finished());
        tasks[0].abort();
    }

    #[test]
    fn few_descriptors_allow_few_introductions() {
        assert!((8..=4096).contains(&most_introductions(4096)));
        assert_eq!(most_introductions(8), 8);
    }
}
