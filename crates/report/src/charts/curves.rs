//! Curves of the metrics: a chart for each metric, with a line for each run.

use std::collections::BTreeMap;

use phalanx_charts::{DASHES, Style, Unit};

use crate::chart::{Chart, Line};
use crate::columns::Column;
use crate::run::RunData;

/// The groups of charts, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// The measures that lead.
    Headlines,
    /// Losses.
    Losses,
    /// Terms of losses and other metrics.
    Measures,
    /// Generative metrics of samples.
    Quality,
    /// Learning rates, gradients, scales.
    Optimisation,
    /// Speed and waiting.
    Speed,
    /// Synchrony of ranks.
    Synchrony,
    /// GPUs.
    Gpu,
}

impl Group {
    /// Its heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Headlines => "Headlines",
            Self::Losses => "Losses",
            Self::Measures => "Measures",
            Self::Quality => "Quality of samples",
            Self::Optimisation => "Optimisation",
            Self::Speed => "Speed and memory",
            Self::Synchrony => "Synchrony",
            Self::Gpu => "GPU of rank 0",
        }
    }
}

/// The placement of a metric: group, chart, name of the line, and unit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ChartPlacement {
    group: Group,
    chart: String,
    line: String,
    unit: Unit,
}

/// Creates a placement.
fn of(group: Group, chart: &str, line: &str, unit: Unit) -> ChartPlacement {
    ChartPlacement { group, chart: chart.to_owned(), line: line.to_owned(), unit }
}

/// Returns the placement of a metric of `metrics.jsonl`. `known` returns true if a metric exists.
fn placement(name: &str, known: &dyn Fn(&str) -> bool) -> ChartPlacement {
    let tested = name.strip_prefix("test_");
    let base = tested.unwrap_or(name);
    let split = if tested.is_some() { "test" } else { "training" };
    if base == "loss" || base.ends_with("_loss") {
        return of(Group::Losses, &base.replace('_', " "), split, Unit::Plain);
    }
    if let Some(tested) = tested {
        return placement_of_test(tested);
    }
    for (ending, chart) in [
        ("lr", "learning rate"),
        ("grad_norm", "gradient norm"),
        ("loss_scale", "loss scale"),
        ("left_out", "steps left out"),
    ] {
        if let Some(network) = name.strip_suffix(ending) {
            let line = if network.is_empty() { chart } else { network.trim_end_matches('_') };
            return of(Group::Optimisation, chart, line, Unit::Plain);
        }
    }
    placement_of_resource(name).unwrap_or_else(|| {
        let words = name.replace('_', " ");
        let line = if known(&format!("test_{name}")) { "training" } else { words.as_str() };
        of(Group::Measures, &words, line, Unit::Plain)
    })
}

/// Returns the placement of a test metric, by its name without `test_`.
fn placement_of_test(tested: &str) -> ChartPlacement {
    for whose in ["drawn", "real"] {
        if let Some(measure) = tested.strip_prefix(&format!("{whose}_")) {
            let line = format!("{whose} pictures");
            return of(Group::Quality, &measure.replace('_', " "), &line, Unit::Plain);
        }
    }
    let judged = ["_frechet_distance", "_frechet_deviation", "_precision", "_recall", "clip_score"];
    // The means over classes are of the model itself, not of a judge.
    let is_judged = !tested.starts_with("macro_") && judged.iter().any(|ending| tested.ends_with(ending));
    match is_judged {
        true => of(Group::Quality, &tested.replace('_', " "), "drawn pictures", Unit::Plain),
        false => of(Group::Measures, &tested.replace('_', " "), "test", Unit::Plain),
    }
}

/// Returns the placement of a metric of speed, synchrony or the GPU.
fn placement_of_resource(name: &str) -> Option<ChartPlacement> {
    let words = name.replace('_', " ");
    Some(match name {
        "samples_per_s" => of(Group::Speed, "speed", "all ranks", Unit::SamplesPerSecond),
        _ if name.ends_with("_per_s") => {
            of(Group::Speed, words.trim_end_matches(" per s"), "per second, all ranks", Unit::Plain)
        }
        "gflops" => of(Group::Speed, "arithmetic of rank 0", "GFLOP/s", Unit::Plain),
        "peak_share" => of(Group::Speed, "arithmetic of rank 0, share of peak", "share", Unit::Share),
        "memory_bytes" => of(Group::Speed, "memory of rank 0", "resident", Unit::Bytes),
        "data_share" => of(Group::Speed, "share of rank 0's time spent waiting", "for data", Unit::Share),
        "communication_share" => {
            of(Group::Speed, "share of rank 0's time spent waiting", "for communication", Unit::Share)
        }
        "waited_seconds" => {
            of(Group::Synchrony, "rank 0 waiting for other ranks, cumulative", "waited", Unit::Seconds)
        }
        "staleness_mean" => of(Group::Synchrony, "staleness of updates, cumulative", "mean", Unit::Plain),
        "staleness_max" => of(Group::Synchrony, "staleness of updates, cumulative", "maximum", Unit::Plain),
        "clock_spread" | "consensus_distance" | "meetings" => {
            of(Group::Synchrony, &words, &words, Unit::Plain)
        }
        _ if name.starts_with("gpu_") => {
            let unit = match name {
                _ if name.ends_with("_bytes") => Unit::Bytes,
                _ if name.ends_with("_watts") => Unit::Watts,
                _ if name.ends_with("_joules") => Unit::Joules,
                _ => Unit::Plain,
            };
            let chart =
                words.trim_end_matches(" bytes").trim_end_matches(" watts").trim_end_matches(" joules");
            of(Group::Gpu, chart, chart, unit)
        }
        _ => return None,
    })
}

/// A metric with at most one value in each run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SingleMeasurement {
    /// The name.
    pub(crate) name: String,
    /// The values, in the order of the runs.
    pub(crate) values: Vec<Option<f64>>,
    /// The unit.
    pub(crate) unit: Unit,
}

/// Returns the charts of the metrics by group, and the metrics with a single value, which make no curve.
pub(crate) fn curves(runs: &[RunData]) -> (Vec<(Group, Vec<Chart>)>, Vec<SingleMeasurement>) {
    let mut names: Vec<&str> = Vec::new();
    for name in runs.iter().flat_map(|run| run.columns.under("metrics/")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let known = |name: &str| names.contains(&name);
    let mut groups: BTreeMap<Group, Vec<Chart>> = BTreeMap::new();
    let mut single = Vec::new();
    let leads = |name: &str| {
        let bare = name.strip_prefix("test_").unwrap_or(name);
        let headlines = runs.iter().filter_map(|run| run.headline.as_deref());
        headlines.map(|headline| headline.strip_prefix("test_").unwrap_or(headline)).any(|lead| lead == bare)
    };
    let place = |name: &str| match placement(name, &known) {
        placement if leads(name) => ChartPlacement { group: Group::Headlines, ..placement },
        placement => placement,
    };
    let placements: Vec<(&str, ChartPlacement)> = names.iter().map(|name| (*name, place(name))).collect();
    // A chart needs at least one metric with several values.
    let is_curve = |chart: &str, group: Group| {
        let mut of_chart =
            placements.iter().filter(|(_, placement)| placement.chart == chart && placement.group == group);
        of_chart.any(|(name, _)| {
            let column =
                |run: &RunData| run.columns.get(&format!("metrics/{name}")).map_or(0, Column::finite);
            runs.iter().any(|run| column(run) > 1)
        })
    };
    for (name, placement) in &placements {
        let key = format!("metrics/{name}");
        if !is_curve(&placement.chart, placement.group) {
            let values = runs.iter().map(|run| run.columns.get(&key)?.last());
            let name = if placement.line == placement.chart {
                placement.chart.clone()
            } else {
                format!("{}, {}", placement.chart, placement.line)
            };
            single.push(SingleMeasurement { name, values: values.collect(), unit: placement.unit });
            continue;
        }
        let charts = groups.entry(placement.group).or_default();
        let at = charts.iter().position(|chart| chart.title == placement.chart).unwrap_or_else(|| {
            charts.push(Chart::lines(&placement.chart, placement.unit, Vec::new()));
            charts.len() - 1
        });
        let of_chart = charts[at]
            .lines
            .iter()
            .map(|line| line.key.clone())
            .collect::<std::collections::BTreeSet<_>>()
            .len();
        charts[at].lines.extend(lines_of_runs(runs, placement, &key, of_chart));
    }
    (groups.into_iter().collect(), single)
}

/// Returns the line of a metric for each run. `of_chart` is the number of other metrics in its chart.
fn lines_of_runs(runs: &[RunData], placement: &ChartPlacement, key: &str, of_chart: usize) -> Vec<Line> {
    let line = |(number, run): (usize, &RunData)| {
        let mut line = Line::of(&placement.line, key, run.columns.get(key)?);
        line.run = number;
        if runs.len() > 1 {
            // A run has one colour on the whole page, and its metrics differ in their dashes.
            let Style { colour, dash } = Style::numbered(number);
            line.style = Some(Style { colour, dash: (of_chart + dash) % DASHES.len() });
            line.name = match placement.line == placement.chart {
                true => run.name.clone(),
                false => format!("{}: {}", run.name, placement.line),
            };
        }
        Some(line)
    };
    runs.iter().enumerate().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_its_place() {
        let known = |name: &str| name == "test_l1";
        let told = |name: &str| {
            let ChartPlacement { group, chart, line, .. } = placement(name, &known);
            format!("{group:?}/{chart}/{line}")
        };
        for (name, expected) in [
            ("loss", "Losses/loss/training"),
            ("test_critic_loss", "Losses/critic loss/test"),
            ("l1", "Measures/l1/training"),
            ("test_l1", "Measures/l1/test"),
            ("kl", "Measures/kl/kl"),
            ("test_drawn_sharpness", "Quality/sharpness/drawn pictures"),
            ("test_real_sharpness", "Quality/sharpness/real pictures"),
            ("test_attributes_frechet_distance", "Quality/attributes frechet distance/drawn pictures"),
            ("test_macro_recall", "Measures/macro recall/test"),
            ("critic_lr", "Optimisation/learning rate/critic"),
            ("grad_norm", "Optimisation/gradient norm/gradient norm"),
            ("communication_share", "Speed/share of rank 0's time spent waiting/for communication"),
            ("gpu_power_watts", "Gpu/gpu power/gpu power"),
        ] {
            assert_eq!(told(name), expected, "{name}");
        }
    }
}
