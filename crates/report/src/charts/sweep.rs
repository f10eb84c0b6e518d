//! Charts of a sweep's tables: speed-ups over numbers of ranks, and the losses of the runs.

use phalanx_charts::{Style, Unit};

use crate::chart::{Chart, Line, XAxis};
use crate::columns::Column;
use crate::run::RunData;
use crate::sweep::{SpeedupLine, Speedups, Sweep, Table};

/// The run index of lines that belong to no run. They are never hidden.
const NO_RUN: usize = u32::MAX as usize;
/// The colour of the line of a target.
const TARGET: usize = 7;
/// The number of parts of that line.
const TARGET_PARTS: u32 = 100;
/// The maximum number of loss charts below a table.
const LOSSES: usize = 6;

/// Returns the charts below a table: speed-ups first.
pub(crate) fn of_table(sweep: &Sweep, table: &Table, runs: &[RunData]) -> Vec<Chart> {
    let mut charts = speedups(table);
    charts.extend(losses(sweep, table, runs));
    charts
}

/// Returns the speed-ups: a chart for each combination of the other axes.
fn speedups(table: &Table) -> Vec<Chart> {
    let chart = |of: &Speedups| {
        let line = |(name, points): &SpeedupLine| {
            let mut column = Column::default();
            points.iter().for_each(|(ranks, value)| column.push(*ranks, f64::NAN, *value));
            Line { run: NO_RUN, ..Line::of(name, "", &column) }
        };
        let title =
            if of.title.is_empty() { "speed-up".to_owned() } else { format!("speed-up; {}", of.title) };
        let lines = of.lines.iter().map(line).collect();
        Chart { across: XAxis::Ranks, ..Chart::lines(&title, Unit::Plain, lines) }
    };
    table.speedups.iter().map(chart).collect()
}

/// Returns charts of the loss of each row's first run. The first axis gives the lines, the other axes give the charts.
/// Empty for a single row or for more than [`LOSSES`] charts: the page shows all curves further below.
fn losses(sweep: &Sweep, table: &Table, runs: &[RunData]) -> Vec<Chart> {
    let (name, below) = match &sweep.target {
        Some((name, below)) => (name.as_str(), Some(*below)),
        None => ("loss", None),
    };
    let key = format!("metrics/{name}");
    let mut charts: Vec<Chart> = Vec::new();
    for row in &table.rows {
        let Some(folder) = row.runs.first().map(|name| sweep.folder.join("runs").join(name)) else {
            continue;
        };
        let Some(number) = runs.iter().position(|run| run.folder == folder) else { continue };
        let Some(column) = runs[number].columns.get(&key).filter(|column| column.finite() > 0) else {
            continue;
        };
        let others = table.axes.iter().zip(&row.choices).skip(1);
        let others: Vec<String> = others.map(|(axis, choice)| format!("{axis}: {choice}")).collect();
        let title = match others.is_empty() {
            true => name.replace('_', " "),
            false => format!("{}; {}", name.replace('_', " "), others.join(", ")),
        };
        let at = charts.iter().position(|chart| chart.title == title).unwrap_or_else(|| {
            charts.push(Chart::lines(&title, Unit::Plain, Vec::new()));
            charts.len() - 1
        });
        let called = row.choices.first().map_or("loss", String::as_str);
        // A run has the same style on the whole page.
        let style = Some(Style::numbered(number));
        charts[at].lines.push(Line { run: number, style, ..Line::of(called, &key, column) });
    }
    let lines: usize = charts.iter().map(|chart| chart.lines.len()).sum();
    if lines < 2 || charts.len() > LOSSES {
        return Vec::new();
    }
    if let Some(below) = below {
        charts.iter_mut().for_each(|chart| add_target(chart, below));
    }
    charts
}

/// Adds the target loss as a horizontal line over the x range of all lines.
fn add_target(chart: &mut Chart, below: f64) {
    let ends = |places: &dyn Fn(&Line) -> Vec<f64>| {
        let all: Vec<f64> = chart.lines.iter().flat_map(places).filter(|place| place.is_finite()).collect();
        let first = all.iter().copied().reduce(f64::min)?;
        Some((first, all.iter().copied().reduce(f64::max)?))
    };
    let Some((first, last)) = ends(&|line| line.steps.clone()) else { return };
    let seconds = ends(&|line| line.seconds.clone()).unwrap_or((f64::NAN, f64::NAN));
    // Several points, so that the line is there in every zoom.
    let mut column = Column::default();
    for part in 0..=TARGET_PARTS {
        let share = f64::from(part) / f64::from(TARGET_PARTS);
        let between = |from: f64, to: f64| from + share * (to - from);
        column.push(between(first, last), between(seconds.0, seconds.1), below);
    }
    let style = Some(Style { colour: TARGET, dash: 1 });
    chart.lines.push(Line { run: NO_RUN, style, ..Line::of("target", "", &column) });
}
