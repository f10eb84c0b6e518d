//! The changes of the world so far, and the time that each took.

use std::time::Instant;

use phalanx_run::WorldChange;

/// The changes of the world so far.
#[derive(Debug, Default)]
pub(in crate::engine::train_loop) struct ChangeLog {
    current: Option<CurrentChange>,
    past: Vec<WorldChange>,
    /// The longest recovery since the last line of metrics, in seconds.
    recovery: Option<f64>,
}

/// The change that no step has followed yet.
#[derive(Debug)]
struct CurrentChange {
    noticed: Instant,
    change: WorldChange,
}

impl ChangeLog {
    /// Adds a change that was noticed at this time. Its ranks are kept in ascending order.
    pub(in crate::engine::train_loop) fn begin(&mut self, noticed: Instant, mut change: WorldChange) {
        change.left.sort_unstable();
        change.came.sort_unstable();
        // A change that another one followed before any step counts by itself.
        if let Some(before) = self.current.replace(CurrentChange { noticed, change }) {
            self.past.push(before.change);
        }
    }

    /// Ends the current change, if there is one: the first step after it is done.
    pub(in crate::engine::train_loop) fn end(&mut self, step: u64) {
        let Some(CurrentChange { noticed, change }) = self.current.take() else { return };
        let seconds = noticed.elapsed().as_secs_f64();
        tracing::info!("step {step} is done {seconds:.3} s after the world changed");
        self.recovery = Some(self.recovery.map_or(seconds, |longest| longest.max(seconds)));
        self.past.push(WorldChange { seconds: Some(seconds), ..change });
    }

    /// Returns the longest time from noticing a change to the next step, in seconds, since the last call.
    pub(in crate::engine::train_loop) fn take_recovery(&mut self) -> Option<f64> {
        self.recovery.take()
    }

    /// The changes that a step has followed.
    pub(in crate::engine::train_loop) fn past(&self) -> &[WorldChange] {
        &self.past
    }

    /// All changes.
    pub(in crate::engine::train_loop) fn all(&self) -> Vec<WorldChange> {
        let current = self.current.iter().map(|current| current.change.clone());
        self.past.iter().cloned().chain(current).collect()
    }

    /// Takes over the changes that other ranks have seen.
    pub(in crate::engine::train_loop) fn take_over(&mut self, changes: &[WorldChange]) {
        self.past = changes.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_change_ascend() {
        let mut log = ChangeLog::default();
        log.begin(
            Instant::now(),
            WorldChange { left: vec![3, 2], came: vec![5, 4], ..WorldChange::default() },
        );
        let [change] = &log.all()[..] else { panic!("one change") };
        assert_eq!((&change.left[..], &change.came[..]), (&[2, 3][..], &[4, 5][..]));
    }
}
