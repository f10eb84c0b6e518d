//! The metrics of a run.

use phalanx_run::Summary;
use serde_json::Value as Json;

use crate::program;

/// Results and costs of a run. Times, shares and bytes count only training steps, and are means over the ranks.
#[derive(Debug, Clone)]
pub(super) struct RunMetrics {
    pub(super) steps: u64,
    /// Mean seconds of training for one epoch.
    pub(super) seconds_per_epoch: f64,
    /// Images a second, summed over all ranks.
    pub(super) samples_per_second: f64,
    /// The largest memory of any rank's process, in bytes.
    pub(super) peak_memory: Option<u64>,
    /// Bytes that a rank sends in a step.
    pub(super) sent_per_step: f64,
    /// Seconds of a step.
    pub(super) step: f64,
    /// Seconds of a step in which a rank waited for communication.
    pub(super) exposed: f64,
    /// Seconds of communication in a step while the rank computed.
    pub(super) hidden: f64,
    /// The training loss of the last step.
    pub(super) loss: Option<f64>,
    pub(super) test_loss: Option<f64>,
    /// The accuracy on the test split, between 0 and 1.
    pub(super) test_accuracy: Option<f64>,
}

impl RunMetrics {
    pub(super) fn of(summary: &Summary) -> Self {
        let mean = |of: &dyn Fn(&phalanx_run::RankSummary) -> f64| {
            summary.ranks.iter().map(of).sum::<f64>() / summary.ranks.len().max(1) as f64
        };
        let steps = summary.step.max(1) as f64;
        let metric = |name: &str| summary.metrics.get(name).and_then(Json::as_f64);
        Self {
            steps: summary.step,
            seconds_per_epoch: mean(&|rank| rank.step_seconds) / summary.epochs.max(f64::MIN_POSITIVE),
            samples_per_second: summary.samples_per_second,
            peak_memory: program::peak_memory(summary),
            sent_per_step: mean(&|rank| rank.step_bytes_sent as f64) / steps,
            step: mean(&|rank| rank.step_seconds) / steps,
            exposed: mean(&|rank| rank.communication_exposed_seconds) / steps,
            hidden: mean(&|rank| rank.communication_hidden_seconds) / steps,
            loss: metric("loss"),
            test_loss: metric("test_loss"),
            test_accuracy: metric("test_accuracy"),
        }
    }

    /// Returns `seconds` as a fraction of a step.
    pub(super) fn share(&self, seconds: f64) -> f64 {
        if self.step > 0.0 { seconds / self.step } else { 0.0 }
    }
}

/// A row of the table.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) ranks: usize,
    pub(super) outcome: Result<RunMetrics, String>,
}
