//! Curves of what training measures: a chart for each measure, with a line for each run.

use std::collections::BTreeMap;

use crate::chart::{COLOURS, Chart, DASHES, Line, Unit};
use crate::run::RunData;

/// The groups of charts, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Losses.
    Losses,
    /// Terms of losses and other measures of a training.
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
            Self::Losses => "Losses",
            Self::Measures => "Measures",
            Self::Quality => "Quality of drawn pictures",
            Self::Optimisation => "Optimisation",
            Self::Speed => "Speed and memory",
            Self::Synchrony => "Keeping step",
            Self::Gpu => "GPU of rank 0",
        }
    }
}

/// Where a measure is drawn: the group, the chart, what the line is called in it, and what its numbers are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    group: Group,
    chart: String,
    line: String,
    unit: Unit,
}

/// Returns a place.
fn of(group: Group, chart: &str, line: &str, unit: Unit) -> Place {
    Place { group, chart: chart.to_owned(), line: line.to_owned(), unit }
}

/// Returns the place of a measure of `metrics.jsonl`. `known` says if a measure of a name exists.
fn place(name: &str, known: &dyn Fn(&str) -> bool) -> Place {
    let tested = name.strip_prefix("test_");
    let base = tested.unwrap_or(name);
    let split = if tested.is_some() { "test" } else { "training" };
    if base == "loss" || base.ends_with("_loss") {
        return of(Group::Losses, &base.replace('_', " "), split, Unit::Plain);
    }
    if let Some(tested) = tested {
        return place_of_test(tested);
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
    place_of_resource(name).unwrap_or_else(|| {
        let words = name.replace('_', " ");
        let line = if known(&format!("test_{name}")) { "training" } else { words.as_str() };
        of(Group::Measures, &words, line, Unit::Plain)
    })
}

/// Returns the place of a measure of the test split, by its name without `test_`.
fn place_of_test(tested: &str) -> Place {
    for whose in ["drawn", "real"] {
        if let Some(measure) = tested.strip_prefix(&format!("{whose}_")) {
            let line = format!("{whose} pictures");
            return of(Group::Quality, &measure.replace('_', " "), &line, Unit::Plain);
        }
    }
    let judged = ["_frechet_distance", "_precision", "_recall", "clip_score"];
    match judged.iter().any(|ending| tested.ends_with(ending)) {
        true => of(Group::Quality, &tested.replace('_', " "), "drawn pictures", Unit::Plain),
        false => of(Group::Measures, &tested.replace('_', " "), "test", Unit::Plain),
    }
}

/// Returns the place of a measure of speed, synchrony or the GPU.
fn place_of_resource(name: &str) -> Option<Place> {
    let words = name.replace('_', " ");
    Some(match name {
        "images_per_s" => of(Group::Speed, "images per second", "all ranks", Unit::Plain),
        "memory_bytes" => of(Group::Speed, "memory of rank 0", "resident", Unit::Bytes),
        "data_share" => of(Group::Speed, "share of rank 0's time spent waiting", "for data", Unit::Share),
        "communication_share" => {
            of(Group::Speed, "share of rank 0's time spent waiting", "for communication", Unit::Share)
        }
        "waited_seconds" => of(Group::Synchrony, "rank 0 held up by others, so far", "waited", Unit::Seconds),
        "staleness_mean" => of(Group::Synchrony, "staleness of updates, so far", "mean", Unit::Plain),
        "staleness_max" => of(Group::Synchrony, "staleness of updates, so far", "most", Unit::Plain),
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

/// A measure that every run has at one step at most.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Once {
    /// The name.
    pub(crate) name: String,
    /// Its numbers, in the order of the runs.
    pub(crate) values: Vec<Option<f64>>,
    /// The unit.
    pub(crate) unit: Unit,
}

/// The charts of the measures of runs by group, and what was measured but once, which makes no curve.
pub(crate) fn curves(runs: &[RunData]) -> (Vec<(Group, Vec<Chart>)>, Vec<Once>) {
    let mut names: Vec<&str> = Vec::new();
    for name in runs.iter().flat_map(|run| run.columns.under("metrics/")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let known = |name: &str| names.contains(&name);
    let mut groups: BTreeMap<Group, Vec<Chart>> = BTreeMap::new();
    let mut once = Vec::new();
    let places: Vec<(&str, Place)> = names.iter().map(|name| (*name, place(name, &known))).collect();
    // A chart is one if any of its measures makes a line.
    let is_curve = |chart: &str, group: Group| {
        let mut of_chart = places.iter().filter(|(_, place)| place.chart == chart && place.group == group);
        of_chart.any(|(name, _)| {
            runs.iter()
                .any(|run| run.columns.get(&format!("metrics/{name}")).is_some_and(|column| column.len() > 1))
        })
    };
    for (name, place) in &places {
        let key = format!("metrics/{name}");
        if !is_curve(&place.chart, place.group) {
            let values = runs.iter().map(|run| run.columns.get(&key)?.values.last().copied());
            let told = if place.line == place.chart {
                place.chart.clone()
            } else {
                format!("{}, {}", place.chart, place.line)
            };
            once.push(Once { name: told, values: values.collect(), unit: place.unit });
            continue;
        }
        let charts = groups.entry(place.group).or_default();
        let at = charts.iter().position(|chart| chart.title == place.chart).unwrap_or_else(|| {
            charts.push(Chart::lines(&place.chart, place.unit, Vec::new()));
            charts.len() - 1
        });
        let of_chart = charts[at]
            .lines
            .iter()
            .map(|line| line.key.clone())
            .collect::<std::collections::BTreeSet<_>>()
            .len();
        charts[at].lines.extend(lines_of_runs(runs, place, &key, of_chart));
    }
    (groups.into_iter().collect(), once)
}

/// Returns the line of a measure for each run. `of_chart` is the number of other measures in its chart.
fn lines_of_runs(runs: &[RunData], place: &Place, key: &str, of_chart: usize) -> Vec<Line> {
    let line = |(number, run): (usize, &RunData)| {
        let mut line = Line::of(&place.line, key, run.columns.get(key)?);
        line.run = number;
        (line.colour, line.dash) = match runs.len() {
            1 => (of_chart % COLOURS, of_chart / COLOURS % DASHES),
            _ => (number % COLOURS, (of_chart + number / COLOURS) % DASHES),
        };
        if runs.len() > 1 {
            line.name = match place.line == place.chart {
                true => run.name.clone(),
                false => format!("{}: {}", run.name, place.line),
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
            let Place { group, chart, line, .. } = place(name, &known);
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
            ("critic_lr", "Optimisation/learning rate/critic"),
            ("grad_norm", "Optimisation/gradient norm/gradient norm"),
            ("communication_share", "Speed/share of rank 0's time spent waiting/for communication"),
            ("gpu_power_watts", "Gpu/gpu power/gpu power"),
        ] {
            assert_eq!(told(name), expected, "{name}");
        }
    }
}
