//! The resource use of a rank over time: rates and shares from `logs/rank-N.usage.jsonl`.

use super::columns::Point;
use super::object_tail::Object;

/// The time between two lines from which on it counts as a break: the run was stopped.
const BREAK_SECONDS: f64 = 60.0;

/// Values that are shown unchanged.
const PLAIN: [&str; 6] =
    ["cpu_percent", "gpu_percent", "cpu_watts", "gpu_watts", "resident_bytes", "gpu_memory_bytes"];
/// The kinds of memory of training state.
pub(crate) const KINDS: [&str; 5] =
    ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "gathered_bytes", "activation_bytes"];
/// Cumulative values since the process started, and the names of their rates per second.
const RATES: [(&str, &str); 6] = [
    ("network_sent_bytes", "network_sent"),
    ("network_received_bytes", "network_received"),
    ("disk_read_bytes", "disk_read"),
    ("disk_written_bytes", "disk_written"),
    ("minor_faults", "minor_faults"),
    ("major_faults", "major_faults"),
];
/// Cumulative values since the process started that are shown as sums over the whole run.
const SUMS: [&str; 2] = ["cpu_joules", "gpu_joules"];
/// Cumulative seconds from which the shares of time are computed.
const SECONDS: [&str; 4] =
    ["data_seconds", "communication_exposed_seconds", "communication_hidden_seconds", "step_seconds"];

/// The last line of a rank, from which the rates of the next line are computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage {
    last: Option<Object>,
    /// The seconds of wall time, without breaks.
    elapsed: f64,
    /// The sums before the process was restarted.
    before: [f64; SUMS.len()],
}

fn number(line: &Object, name: &str) -> Option<f64> {
    line.get(name)?.as_f64().filter(|value| value.is_finite())
}

impl Usage {
    /// Returns the last line.
    pub(crate) fn last(&self) -> Option<&Object> {
        self.last.as_ref()
    }

    /// Returns the points of the next line of a rank.
    pub(crate) fn points(&mut self, rank: usize, line: &Object) -> Vec<Point> {
        let last = self.last.take();
        let passed = last.as_ref().and_then(|last| Some(number(line, "time")? - number(last, "time")?));
        let passed = passed.filter(|passed| *passed > 0.0 && *passed < BREAK_SECONDS);
        self.elapsed += passed.unwrap_or_default();
        // Sums restart with the process: a decreasing sum means a new process.
        let fell = |name: &&str| {
            let before = last.as_ref().and_then(|last| number(last, name));
            before.zip(number(line, name)).is_some_and(|(before, now)| now < before)
        };
        let mut counted = RATES.iter().map(|(name, _)| name).chain(&SUMS).chain(&SECONDS);
        let anew = counted.any(fell);
        if let Some(last) = last.as_ref().filter(|_| anew) {
            for (before, name) in self.before.iter_mut().zip(SUMS) {
                *before += number(last, name).unwrap_or_default();
            }
        }
        let mut values: Vec<(&str, f64)> = Vec::new();
        values.extend(PLAIN.iter().chain(&KINDS).filter_map(|name| Some((*name, number(line, name)?))));
        for (before, name) in self.before.iter().zip(SUMS) {
            values.extend(number(line, name).map(|sum| (name, before + sum)));
        }
        // On a GPU, the training state is in GPU memory.
        let whole = number(line, "gpu_memory_bytes").or_else(|| number(line, "resident_bytes"));
        if let Some(whole) = whole {
            let known: f64 = KINDS.iter().filter_map(|name| number(line, name)).sum();
            values.push(("other_bytes", (whole - known).max(0.0)));
        }
        if let (Some(last), Some(passed), false) = (&last, passed, anew) {
            let grown = |name: &str| Some(number(line, name)? - number(last, name)?);
            values.extend(
                RATES.iter().filter_map(|(name, rate)| Some((*rate, grown(name)?.max(0.0) / passed))),
            );
            let [data, exposed, hidden, steps] = SECONDS.map(grown);
            if let Some(steps) = steps {
                let (data, exposed) = (data.unwrap_or_default(), exposed.unwrap_or_default());
                // A step is counted when it ends, so its seconds may exceed the interval of the line.
                let whole = passed.max(steps).max(data + exposed).max(f64::MIN_POSITIVE);
                let steps = steps.max(data + exposed);
                values.push(("data_share", data / whole));
                values.push(("exposed_share", exposed / whole));
                values.push(("computing_share", (steps - data - exposed) / whole));
                values.push(("besides_share", (whole - steps) / whole));
                values.extend(hidden.map(|hidden| ("hidden_share", (hidden / whole).min(1.0))));
            }
        }
        let step = number(line, "step").unwrap_or_default();
        let point = |(name, value): (&str, f64)| Point {
            key: format!("usage/{rank}/{name}"),
            step,
            seconds: self.elapsed,
            value,
        };
        let points = values.into_iter().map(point).collect();
        self.last = Some(line.clone());
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(time: f64, sent: u64, data: f64, step: f64, joules: f64) -> Object {
        let line = json!({
            "time": time, "step": 1, "rank": 2, "network_sent_bytes": sent, "data_seconds": data,
            "communication_exposed_seconds": data, "step_seconds": step, "cpu_joules": joules,
            "resident_bytes": 100, "parameter_bytes": 30, "gradient_bytes": null,
        });
        line.as_object().expect("an object").clone()
    }

    #[test]
    fn rates_and_shares_are_between_lines() {
        let mut usage = Usage::default();
        let get = |points: &[Point], name: &str| {
            let key = format!("usage/2/{name}");
            points.iter().find(|point| point.key == key).map(|point| (point.seconds, point.value))
        };
        let first = usage.points(2, &line(1000.0, 500, 0.0, 0.0, 5.0));
        assert_eq!(get(&first, "other_bytes"), Some((0.0, 70.0)));
        assert_eq!(get(&first, "network_sent"), None, "a first line has no rate");
        let second = usage.points(2, &line(1002.0, 900, 0.5, 1.5, 9.0));
        assert_eq!(get(&second, "network_sent"), Some((2.0, 200.0)));
        let shares = ["data_share", "exposed_share", "computing_share", "besides_share"];
        let shares = shares.map(|name| get(&second, name).expect("a share").1);
        assert_eq!(shares, [0.25, 0.25, 0.25, 0.25]);
        // A day later the run was resumed by another process.
        let third = usage.points(2, &line(90_000.0, 10, 0.0, 0.0, 1.0));
        assert_eq!(get(&third, "network_sent"), None);
        assert_eq!(get(&third, "cpu_joules"), Some((2.0, 10.0)), "the whole run's");
        // More than was passed is told of: shares stay shares.
        let fourth = usage.points(2, &line(90_001.0, 20, 2.0, 4.0, 2.0));
        assert_eq!(get(&fourth, "computing_share"), Some((3.0, 0.0)));
        assert_eq!(get(&fourth, "data_share"), Some((3.0, 0.5)));
        assert_eq!(get(&fourth, "cpu_joules"), Some((3.0, 11.0)));
    }
}
