//! The resources of a rank, from the lines of its `logs/rank-N.usage.jsonl`.

use std::collections::VecDeque;

use serde::Deserialize;

/// One line. What the system does not say is absent; numbers that grow begin at 0 with the rank's process.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) step: u64,
    pub(super) host: Option<String>,
    /// A busy core is 100.
    pub(super) cpu_percent: Option<f64>,
    pub(super) resident_bytes: Option<f64>,
    #[serde(flatten)]
    pub(super) accounted: AccountedMemory,
    pub(super) network_sent_bytes: Option<f64>,
    pub(super) network_received_bytes: Option<f64>,
    #[serde(flatten)]
    pub(super) spent: SpentSeconds,
    #[serde(flatten)]
    pub(super) gpu: GpuUsage,
    pub(super) cpu_watts: Option<f64>,
    /// `measured` or `estimated`.
    pub(super) energy: Option<String>,
}

/// The memory that the program accounts for, by kind.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct AccountedMemory {
    parameter_bytes: Option<f64>,
    gradient_bytes: Option<f64>,
    optimizer_bytes: Option<f64>,
    gathered_bytes: Option<f64>,
    activation_bytes: Option<f64>,
}

/// The seconds of training steps and of their parts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct SpentSeconds {
    pub(super) data_seconds: Option<f64>,
    pub(super) communication_exposed_seconds: Option<f64>,
    pub(super) communication_hidden_seconds: Option<f64>,
    pub(super) step_seconds: Option<f64>,
}

/// The use of the rank's GPU.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct GpuUsage {
    pub(super) gpu_percent: Option<f64>,
    pub(super) gpu_memory_bytes: Option<f64>,
    pub(super) gpu_watts: Option<f64>,
}

impl Usage {
    /// Memory by kind, with a short name of each, as far as it is known; what is left of the resident memory is `other`.
    pub(super) fn memory(&self) -> Vec<(&'static str, f64)> {
        let kinds = [
            ("param", self.accounted.parameter_bytes),
            ("grad", self.accounted.gradient_bytes),
            ("optim", self.accounted.optimizer_bytes),
            ("gather", self.accounted.gathered_bytes),
            ("activ", self.accounted.activation_bytes),
        ];
        let mut known: Vec<_> = kinds
            .into_iter()
            .filter_map(|(name, bytes)| Some((name, bytes?)).filter(|kind| kind.1 > 0.0))
            .collect();
        if let Some(resident) = self.resident_bytes {
            let other = resident - known.iter().map(|(_, bytes)| bytes).sum::<f64>();
            // Where a GPU holds them, they are no part of what the process holds.
            if other > 0.0 {
                known.push(("other", other));
            }
        }
        known
    }

    /// Returns the watts of the rank's share of the CPU and of its GPU, as far as they are known.
    pub(super) fn watts(&self) -> Option<f64> {
        match (self.cpu_watts, self.gpu.gpu_watts) {
            (None, None) => None,
            (cpu, gpu) => Some(cpu.unwrap_or_default() + gpu.unwrap_or_default()),
        }
    }
}

/// Over how many lines rates are taken.
const WINDOW: usize = 10;

/// The last lines of a rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Recent(VecDeque<Usage>);

impl Recent {
    /// Adds a line.
    pub(super) fn push(&mut self, usage: Usage) {
        let restarted = |last: &Usage| {
            let [before, now] = [last, &usage].map(|usage| usage.spent.step_seconds.unwrap_or_default());
            now < before || usage.step < last.step
        };
        if self.0.back().is_some_and(restarted) {
            // A run that was resumed counts from 0 again.
            self.0.clear();
        }
        self.0.push_back(usage);
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
    }

    /// The last line.
    pub(super) fn last(&self) -> Option<&Usage> {
        self.0.back()
    }

    /// By how much a number has grown over the last lines; none of fewer than two.
    fn growth(&self, of: impl Fn(&Usage) -> Option<f64>) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        (self.0.len() > 1).then_some(())?;
        Some(of(last)? - of(first)?)
    }

    /// Growth in a second.
    pub(super) fn rate(&self, of: impl Fn(&Usage) -> Option<f64>) -> Option<f64> {
        let seconds = self.growth(|usage| Some(usage.time)).filter(|seconds| *seconds > 0.0)?;
        Some(self.growth(of)? / seconds)
    }

    /// Growth of some seconds in a second of training steps, from 0 to 1.
    pub(super) fn share(&self, of: impl Fn(&Usage) -> Option<f64>) -> Option<f64> {
        let seconds = self.growth(|usage| usage.spent.step_seconds).filter(|seconds| *seconds > 0.0)?;
        Some((self.growth(of)? / seconds).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Usage {
        serde_json::from_str(text).expect("a line")
    }

    #[test]
    fn rates_are_of_the_last_lines_and_begin_anew_with_a_process() {
        let mut recent = Recent::default();
        let text = |time: f64, sent: u64, exposed: f64, steps: f64| {
            format!(
                r#"{{"time":{time},"step":{steps},"rank":0,"network_sent_bytes":{sent},"gpu_watts":null,
                "communication_exposed_seconds":{exposed},"step_seconds":{steps}}}"#
            )
        };
        recent.push(line(&text(100.0, 1000, 0.5, 1.0)));
        assert_eq!(recent.rate(|usage| usage.network_sent_bytes), None, "of one line there is no rate");
        recent.push(line(&text(102.0, 5000, 1.0, 3.0)));
        assert_eq!(recent.rate(|usage| usage.network_sent_bytes), Some(2000.0));
        assert_eq!(recent.share(|usage| usage.spent.communication_exposed_seconds), Some(0.25));
        assert_eq!(recent.rate(|usage| usage.gpu.gpu_watts), None);
        recent.push(line(&text(200.0, 10, 0.0, 2.0)));
        assert_eq!(recent.rate(|usage| usage.network_sent_bytes), None);
    }

    #[test]
    fn memory_that_is_of_no_kind_is_other() {
        let usage =
            line(r#"{"resident_bytes":100,"parameter_bytes":30,"gradient_bytes":0,"optimizer_bytes":20}"#);
        assert_eq!(usage.memory(), [("param", 30.0), ("optim", 20.0), ("other", 50.0)]);
        assert_eq!(line(r#"{"resident_bytes":10,"parameter_bytes":30}"#).memory(), [("param", 30.0)]);
        assert_eq!(line(r#"{"cpu_watts":3.0,"gpu_watts":null}"#).watts(), Some(3.0));
        assert_eq!(line("{}").watts(), None);
    }
}
