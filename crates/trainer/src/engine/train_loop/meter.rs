//! Training time by its use.

use std::time::Duration;

use phalanx_collectives::Clock;
use phalanx_run::{ArithmeticRate, UnitRate};

/// The cost of steps, for the lines of metrics and for the summary.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    window: StepCost,
    whole: StepCost,
    /// Seconds of training before this process began or resumed.
    seconds_before: f64,
    answers: Answers,
}

/// Bytes that answered requests for other ranks' steps.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    /// All of them.
    sum: u64,
    /// The last value of the counter of the current world.
    counter: u64,
}

impl Answers {
    /// These after the counter has this value. The counter begins at 0 again in a world that has changed.
    fn at(self, counter: u64) -> Self {
        let new = counter.checked_sub(self.counter).unwrap_or(counter);
        Self { sum: self.sum + new, counter }
    }
}

/// The cost of one step or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StepCost {
    /// Whole steps.
    pub(super) steps: Duration,
    /// The part of `steps` that waited for data.
    pub(super) data: Duration,
    /// The part of `steps` that waited for communication.
    pub(super) communication: Duration,
    /// The part of `steps` in which the communication thread worked, overlapped or not.
    pub(super) busy: Duration,
    /// Bytes sent to other ranks, without answers to their requests.
    pub(super) sent: u64,
    /// Samples over all ranks.
    pub(super) samples: usize,
    /// The sum of their weights.
    pub(super) weight: f64,
    /// Floating-point operations of this rank.
    pub(super) operations: u64,
}

impl StepCost {
    /// Samples per second.
    pub(super) fn rate(&self) -> f64 {
        self.per_second(self.samples as f64)
    }

    /// The rate of the units that the weights of samples count, if they count any.
    pub(super) fn unit_rate(&self, unit: Option<&str>) -> Option<UnitRate> {
        unit.map(|unit| UnitRate { unit: unit.to_owned(), per_second: self.per_second(self.weight) })
    }

    /// The rate of this rank's arithmetic, if there is any, on a device with this peak in operations per second.
    pub(super) fn arithmetic_rate(&self, peak: Option<f64>) -> Option<ArithmeticRate> {
        let per_second = self.per_second(self.operations as f64);
        let peak_share = peak.map(|peak| per_second / peak);
        (per_second > 0.0).then_some(ArithmeticRate { gflops: 1e-9 * per_second, peak_share })
    }

    fn per_second(&self, number: f64) -> f64 {
        let seconds = self.steps.as_secs_f64();
        if seconds > 0.0 { number / seconds } else { 0.0 }
    }

    /// The fraction of `part` in the whole steps, from 0 to 1.
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
        self.samples += other.samples;
        self.weight += other.weight;
        self.operations += other.operations;
    }
}

impl Meter {
    /// Begins after the time that other ranks have trained already.
    pub(super) fn begin_after(&mut self, trained: Duration) {
        self.whole.steps = trained;
    }

    /// Sets the seconds of training before this process began or resumed, as the metrics have them.
    pub(super) fn set_seconds_before(&mut self, seconds: f64) {
        self.seconds_before = seconds;
    }

    /// Seconds of training before this process began or resumed.
    pub(super) fn seconds_before(&self) -> f64 {
        self.seconds_before
    }

    /// Adds one step, after which the rank had answered requests by this many bytes.
    pub(super) fn add(&mut self, step: &StepCost, bytes_answered: u64) {
        self.window.add(step);
        self.whole.add(step);
        self.answers = self.answers.at(bytes_answered);
    }

    /// The bytes sent for steps of any rank since this process began, if this rank has answered requests by this many now.
    pub(super) fn step_bytes(&self, bytes_answered: u64) -> u64 {
        self.whole.sent + self.answers.at(bytes_answered).sum
    }

    /// Returns the cost since the last call.
    pub(super) fn take_window(&mut self) -> StepCost {
        std::mem::take(&mut self.window)
    }

    /// The cost since this process began.
    pub(super) fn whole(&self) -> &StepCost {
        &self.whole
    }
}

/// Runs `work` and adds its duration to `total`.
pub(super) fn timed<T>(clock: Clock, total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = clock.now();
    let result = work();
    *total += clock.now().saturating_sub(start);
    result
}
