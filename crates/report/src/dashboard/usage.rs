//! The resource use of a rank, from `logs/rank-N.usage.jsonl`.

use std::collections::VecDeque;

use phalanx_run::UsageLine;

/// The number of lines over which rates are computed.
const WINDOW: usize = 10;

/// The last usage lines of a rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Recent(VecDeque<UsageLine>);

impl Recent {
    /// Adds a line.
    pub(super) fn push(&mut self, usage: UsageLine) {
        let restarted = |last: &UsageLine| {
            let [before, now] = [last, &usage].map(|usage| usage.times.step_seconds);
            now < before || usage.step < last.step
        };
        if self.0.back().is_some_and(restarted) {
            // A resumed run counts from 0 again.
            self.0.clear();
        }
        self.0.push_back(usage);
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
    }

    /// The last line.
    pub(super) fn last(&self) -> Option<&UsageLine> {
        self.0.back()
    }

    /// Returns the growth of a value over the last lines; `None` for fewer than two lines.
    fn growth(&self, of: impl Fn(&UsageLine) -> Option<f64>) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        (self.0.len() > 1).then_some(())?;
        Some(of(last)? - of(first)?)
    }

    /// Returns the growth per second.
    pub(super) fn rate(&self, of: impl Fn(&UsageLine) -> Option<f64>) -> Option<f64> {
        let seconds = self.growth(|usage| Some(usage.time)).filter(|seconds| *seconds > 0.0)?;
        Some(self.growth(of)? / seconds)
    }

    /// Returns the growth of a time as a share of the time of training steps, from 0 to 1.
    pub(super) fn share(&self, of: impl Fn(&UsageLine) -> Option<f64>) -> Option<f64> {
        let seconds = self.growth(|usage| Some(usage.times.step_seconds)).filter(|seconds| *seconds > 0.0)?;
        Some((self.growth(of)? / seconds).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> UsageLine {
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
        assert_eq!(
            recent.rate(|usage| Some(usage.transfers.network_sent_bytes as f64)),
            None,
            "of one line there is no rate"
        );
        recent.push(line(&text(102.0, 5000, 1.0, 3.0)));
        assert_eq!(recent.rate(|usage| Some(usage.transfers.network_sent_bytes as f64)), Some(2000.0));
        assert_eq!(recent.share(|usage| Some(usage.times.communication_exposed_seconds)), Some(0.25));
        assert_eq!(recent.rate(|usage| usage.gpu.gpu_watts), None);
        recent.push(line(&text(200.0, 10, 0.0, 2.0)));
        assert_eq!(recent.rate(|usage| Some(usage.transfers.network_sent_bytes as f64)), None);
    }
}
