//! Where the time goes.

use std::time::Duration;

use phalanx_collectives::Clock;

/// Time by what it was spent on, for the line that is logged and for the summary.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    window: Spent,
    whole: Spent,
}

/// What a stretch of training took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spent {
    /// Whole steps.
    pub(super) steps: Duration,
    /// Of these, waiting for data.
    pub(super) data: Duration,
    /// Of these, waiting for communication.
    pub(super) communication: Duration,
    /// Of these, in which the communication thread was at work, whether anybody waited for it or not.
    pub(super) busy: Duration,
    /// Bytes sent to other ranks.
    pub(super) sent: u64,
    /// Images over all ranks.
    pub(super) images: usize,
}

impl Spent {
    /// Images in a second.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.steps.as_secs_f64();
        if seconds > 0.0 { self.images as f64 / seconds } else { 0.0 }
    }

    /// The share of `part` in the whole steps.
    pub(super) fn share(&self, part: Duration) -> f64 {
        let seconds = self.steps.as_secs_f64();
        if seconds > 0.0 { part.as_secs_f64() / seconds } else { 0.0 }
    }

    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.data += other.data;
        self.communication += other.communication;
        self.busy += other.busy;
        self.sent += other.sent;
        self.images += other.images;
    }
}

impl Meter {
    /// Counts from the time on that others have trained already.
    pub(super) fn begin_after(&mut self, trained: Duration) {
        self.whole.steps = trained;
    }

    /// Counts one step.
    pub(super) fn add(&mut self, step: &Spent) {
        self.window.add(step);
        self.whole.add(step);
    }

    /// What was spent since the last call.
    pub(super) fn take_window(&mut self) -> Spent {
        std::mem::take(&mut self.window)
    }

    /// What was spent since the start.
    pub(super) fn whole(&self) -> &Spent {
        &self.whole
    }
}

/// Runs `work` and adds its time by this clock to `total`.
pub(super) fn timed<T>(clock: Clock, total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = clock.now();
    let result = work();
    *total += clock.now().saturating_sub(start);
    result
}
