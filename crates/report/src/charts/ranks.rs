//! Comparison of ranks: bars of work and waiting times, histograms, and differences in time.

use phalanx_charts::{Style, Styles, Unit};
use serde_json::Value;

use crate::chart::{Chart, Line};
use crate::columns::Column;
use crate::run::RunData;
use crate::settings::at;

/// Stacked bars.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bars {
    /// The title.
    pub(crate) title: String,
    /// The unit.
    pub(crate) unit: Unit,
    /// The name of each bar.
    pub(crate) names: Vec<String>,
    /// The names and styles of the parts.
    pub(crate) parts: Vec<(String, Style)>,
    /// The parts of each bar.
    pub(crate) values: Vec<Vec<f64>>,
}

/// Returns a number of a rank; 0 if missing.
fn number(rank: &Value, name: &str) -> f64 {
    at(rank, name).and_then(Value::as_f64).filter(|number| number.is_finite()).unwrap_or_default()
}

impl Bars {
    /// Returns true if no value is above 0.
    pub(crate) fn is_blank(&self) -> bool {
        !self.values.iter().flatten().any(|value| *value > 0.0)
    }
}

/// Returns the resource use of each rank: from the summary, or else the last usage line.
pub(crate) fn accounts(run: &RunData) -> Vec<Value> {
    if !run.ranks().is_empty() {
        return run.ranks().to_vec();
    }
    run.tails.last_usage().map(|(_, line)| Value::Object(line.clone())).collect()
}

/// Returns the bars of a run's ranks.
pub(crate) fn bars(run: &RunData) -> Vec<Bars> {
    let accounts = accounts(run);
    if accounts.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = accounts.iter().map(|rank| format!("rank {}", number(rank, "rank"))).collect();
    let make = |title: &str, unit: Unit, parts: &[&str], of: &dyn Fn(&Value) -> Vec<f64>| {
        let styles = Styles::of([parts.to_vec()]);
        Bars {
            title: title.to_owned(),
            unit,
            names: names.clone(),
            parts: parts.iter().map(|name| ((*name).to_owned(), styles.get(name))).collect(),
            values: accounts.iter().map(of).collect(),
        }
    };
    let times = make(
        "time of training steps",
        Unit::Seconds,
        &["computing", "exposed communication", "data loading"],
        &|rank| {
            let (data, exposed) =
                (number(rank, "data_seconds"), number(rank, "communication_exposed_seconds"));
            vec![(number(rank, "step_seconds") - data - exposed).max(0.0), exposed, data]
        },
    );
    let memory = make(
        "peak memory",
        Unit::Bytes,
        &["parameters", "gradients", "optimizer", "gathered parameters", "other"],
        &|rank| {
            let mut parts = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "gathered_bytes"]
                .map(|name| number(rank, name))
                .to_vec();
            let peak = number(rank, "peak_memory_bytes").max(number(rank, "resident_bytes"));
            parts.push((peak - parts.iter().sum::<f64>()).max(0.0));
            parts
        },
    );
    let sent = make("sent to other ranks", Unit::Bytes, &["sent"], &|rank| {
        vec![number(rank, "bytes_sent").max(number(rank, "network_sent_bytes"))]
    });
    let hidden = make("time of hidden communication", Unit::Seconds, &["hidden communication"], &|rank| {
        vec![number(rank, "communication_hidden_seconds")]
    });
    let waited = make("time waiting for other ranks", Unit::Seconds, &["waiting for other ranks"], &|rank| {
        vec![number(rank, "synchrony.waited_seconds")]
    });
    let joules = make("energy", Unit::Joules, &["energy"], &|rank| vec![number(rank, "joules")]);
    vec![times, memory, sent, hidden, waited, joules]
}

/// Returns the histograms of update staleness and worker leads over all ranks.
pub(crate) fn histograms(run: &RunData) -> Vec<(&'static str, Vec<f64>)> {
    let sum = |name: &str| {
        let mut sum: Vec<f64> = Vec::new();
        for rank in run.ranks() {
            let counts = at(rank, name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            sum.resize(sum.len().max(counts.len()), 0.0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.as_f64().unwrap_or_default());
        }
        sum
    };
    let all = [
        ("updates by staleness, in updates", sum("synchrony.staleness")),
        ("steps by lead over the slowest worker, in steps", sum("synchrony.leads")),
    ];
    all.into_iter().filter(|(_, counts)| counts.iter().any(|count| *count > 0.0)).collect()
}

/// Returns charts by rank: the seconds that it finished each step after the first rank, and its losses.
pub(crate) fn apart(run: &RunData, number: usize) -> Vec<Chart> {
    let ranks = run.columns.ranks("rank/");
    let key = |rank: usize, name: &str| format!("rank/{rank}/{name}");
    let mut first = std::collections::BTreeMap::new();
    for column in ranks.iter().filter_map(|rank| run.columns.get(&key(*rank, "seconds"))) {
        for (step, seconds) in column.steps.iter().zip(&column.values) {
            let least = first.entry(step.to_bits()).or_insert(f64::INFINITY);
            *least = seconds.min(*least);
        }
    }
    let behind = |rank: &usize| {
        let mut behind = Column::default();
        let column = run.columns.get(&key(*rank, "seconds"))?;
        for (step, seconds) in column.steps.iter().zip(&column.values) {
            behind.push(*step, *seconds, seconds - first.get(&step.to_bits())?);
        }
        // No key: live points cannot be compared before all ranks have reported the step.
        Some(Line { run: number, ..Line::of(&format!("rank {rank}"), "", &behind) })
    };
    let mut names: Vec<&str> = Vec::new();
    for rank in &ranks {
        let start = format!("rank/{rank}/");
        for key in run.columns.under("rank/") {
            let Some(name) = key.strip_prefix(start.trim_start_matches("rank/")) else { continue };
            if name != "seconds" && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let mut charts = vec![Chart::lines(
        "time behind the first rank",
        Unit::Seconds,
        ranks.iter().filter_map(behind).collect(),
    )];
    for name in names {
        let line = |rank: &usize| {
            let key = key(*rank, name);
            Some(Line { run: number, ..Line::of(&format!("rank {rank}"), &key, run.columns.get(&key)?) })
        };
        let title = format!("{} of each rank", name.replace('_', " "));
        charts.push(Chart::lines(&title, Unit::Plain, ranks.iter().filter_map(line).collect()));
    }
    charts.retain(|chart| chart.lines.iter().any(|line| line.values.len() > 1));
    charts
}
