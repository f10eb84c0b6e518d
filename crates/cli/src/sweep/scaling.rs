//! The speed-up over ranks, with lines that explain it.

use super::table::ResultTable;
use super::trials::Table;
use phalanx_charts::{Axis, AxisScale, Figure, Panel, Series, Unit};
use serde_json::{Value, json};

const SIZE: (f64, f64) = (620.0, 420.0);
/// Points of a computed line.
const POINTS: u32 = 60;
/// The name of the measured line.
const MEASURED: &str = "measured";
/// The name of the line of ranks that only communicate.
const COMMUNICATION: &str = "communication alone";

/// The speed-ups over the numbers of ranks, for one combination of the other axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Speedups {
    /// The combination.
    pub title: String,
    /// The lines.
    pub lines: Vec<Series>,
}

impl Speedups {
    /// Returns the JSON for programs and for the report.
    pub fn json(&self) -> Value {
        let line = |line: &Series| json!({ "name": line.name, "points": line.points });
        json!({ "title": self.title, "x": "ranks", "series": self.lines.iter().map(line).collect::<Vec<_>>() })
    }

    fn panel(&self) -> Panel {
        let (ranks, times) =
            (Axis::of("ranks", Unit::Count), Axis { scale: AxisScale::Linear, ..Axis::default() });
        Panel::lines(self.title.clone(), ranks, times, self.lines.clone())
    }
}

/// Returns a table's speed-ups over its numbers of ranks, for each combination of the other axes.
///
/// Lines are: measured; predicted by the cost model; the limit if only communication takes time; Amdahl's law with the best fitting
/// serial part; linear speed-up. There are none if the table asks for none or has no numbers.
pub fn speedups(table: &Table, filled: &ResultTable) -> Vec<Speedups> {
    let Some(scaling) = &table.scaling else { return Vec::new() };
    let Some(over) = table.axes.iter().position(|axis| *axis == scaling.over) else { return Vec::new() };
    let column = |name: &String| filled.columns.iter().position(|column| column == name);
    let lines = [
        (MEASURED, column(&scaling.speedup)),
        ("predicted", scaling.predicted.as_ref().and_then(column)),
        (COMMUNICATION, scaling.communication.as_ref().and_then(column)),
    ];
    let mut all: Vec<Speedups> = Vec::new();
    for row in &filled.rows {
        let Ok(ranks) = row.choices[over].parse::<f64>() else { continue };
        let others = table.axes.iter().zip(&row.choices).enumerate().filter(|(at, _)| *at != over);
        let others: Vec<String> = others.map(|(_, (axis, choice))| format!("{axis}: {choice}")).collect();
        let title = others.join(", ");
        for (name, column) in lines {
            let Some(cell) = column.and_then(|column| row.cells[column]) else { continue };
            let of_title = found(
                &mut all,
                |known| known.title == title,
                || Speedups { title: title.clone(), lines: Vec::new() },
            );
            let line = found(&mut of_title.lines, |line| line.name == name, || Series::new(name, Vec::new()));
            line.points.push((ranks, cell.mean));
        }
    }
    all.iter_mut().for_each(complete);
    all
}

/// Adds Amdahl's law and linear speed-up.
fn complete(speedups: &mut Speedups) {
    let lines = &mut speedups.lines;
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(1.0, f64::max);
    // A limit far above the number of ranks would flatten all other lines.
    for line in lines.iter_mut().filter(|line| line.name == COMMUNICATION) {
        line.points.retain(|point| point.1 <= most);
    }
    lines.retain(|line| !line.points.is_empty());
    let line = |name: &str, of: &dyn Fn(f64) -> f64| {
        let at = |part: u32| 1.0 + (most - 1.0) * f64::from(part) / f64::from(POINTS);
        Series::new(name, (0..=POINTS).map(at).map(|ranks| (ranks, of(ranks))).collect())
    };
    let points = lines.iter().find(|line| line.name == MEASURED).map(|line| &line.points[..]);
    if let Some(serial) = points.and_then(serial_part) {
        let law = line("Amdahl's law", &|ranks| amdahl(serial, ranks));
        let between = if speedups.title.is_empty() { "" } else { "; " };
        speedups.title.push_str(&format!("{between}serial part {serial:.3}"));
        lines.push(law);
    }
    lines.push(line("as many times as ranks", &|ranks| ranks));
}

/// Draws a table's speed-ups.
pub fn speedups_svg(title: &str, speedups: &[Speedups]) -> String {
    let panels: Vec<Panel> = speedups.iter().map(Speedups::panel).collect();
    let columns = panels.len().min(2);
    Figure::new(format!("{title}: speed-up"), panels).grid(columns, SIZE).svg()
}

/// Returns the first element that `is` accepts, and adds one if there is none.
fn found<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(make());
        all.len() - 1
    });
    &mut all[at]
}

/// Returns the speed-up by Amdahl's law.
fn amdahl(serial: f64, ranks: f64) -> f64 {
    1.0 / (serial + (1.0 - serial) / ranks)
}

/// The serial part, between 0 and 1, by which Amdahl's law is nearest to measured times, the inverses of speed-ups, in squares.
/// `None` unless more than one rank was measured.
fn serial_part(points: &[(f64, f64)]) -> Option<f64> {
    // 1/S = s + (1 - s)/n, so 1/S - 1/n = s (1 - 1/n).
    let (mut products, mut squares) = (0.0, 0.0);
    for (ranks, speedup) in points.iter().filter(|point| point.0 > 1.0 && point.1 > 0.0) {
        let other = 1.0 - 1.0 / ranks;
        products += other * (1.0 / speedup - 1.0 / ranks);
        squares += other * other;
    }
    (squares > 0.0).then(|| (products / squares).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::{Row, Scaling, Spread};

    #[test]
    fn the_serial_part_of_amdahls_law_is_found() {
        let points: Vec<_> = [1.0, 2.0, 4.0, 8.0].map(|ranks| (ranks, amdahl(0.1, ranks))).to_vec();
        assert!((serial_part(&points).expect("measured") - 0.1).abs() < 1e-9);
        assert_eq!(serial_part(&[(1.0, 1.0)]), None);
        assert_eq!(serial_part(&[(2.0, 2.5)]), Some(0.0), "faster than ranks allow");
    }

    #[test]
    fn a_panel_for_each_way_with_the_lines_that_belong_to_it() {
        let one = |number: f64| Spread::of(&[number]);
        let row = |way: &str, ranks: &str, measured: Option<f64>, predicted: f64, communication| Row {
            choices: vec![way.into(), ranks.into()],
            cells: vec![measured.and_then(one), one(predicted), Option::and_then(communication, one)],
            published: std::collections::BTreeMap::new(),
            energy: None,
            seeds: 1,
            errors: Vec::new(),
            pruned: None,
        };
        let axes = vec!["way".to_owned(), "ranks".to_owned()];
        let (predicted, communication) = (Some("predicted_speedup".to_owned()), Some("limit".to_owned()));
        let scaling = Scaling { over: "ranks".into(), speedup: "speedup".into(), predicted, communication };
        let table = Table { axes: axes.clone(), scaling: Some(scaling), ..Table::default() };
        let filled = ResultTable {
            title: String::new(),
            axes,
            columns: vec!["speedup".into(), "predicted_speedup".into(), "limit".into()],
            sources: Vec::new(),
            rows: vec![
                row("ring", "1", Some(1.0), 1.0, None),
                row("ring", "2", Some(1.9), 1.8, Some(80.0)),
                row("ring", "64", None, 30.0, Some(60.0)),
                row("single", "1", Some(1.0), 1.0, None),
            ],
            best: None,
        };
        let all = speedups(&table, &filled);
        assert_eq!(
            all.iter().map(|speedups| speedups.title.as_str()).collect::<Vec<_>>(),
            ["way: ring; serial part 0.053", "way: single"]
        );
        let names =
            |of: &Speedups| of.lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>().join(", ");
        // The law where two were measured.
        let expected = "measured, predicted, communication alone, Amdahl's law, as many times as ranks";
        assert_eq!(names(&all[0]), expected);
        assert_eq!(names(&all[1]), "measured, predicted, as many times as ranks");
        assert_eq!(all[0].lines[2].points, [(64.0, 60.0)], "above all others it is not drawn");
        assert_eq!(
            all[0].json()["series"][2],
            json!({ "name": "communication alone", "points": [[64.0, 60.0]] })
        );
        let svg = speedups_svg("a & b", &all);
        // Of two panels: measured and predicted lines, Amdahl's law, linear speed-up. One measurement is a dot.
        assert_eq!(svg.matches("<path class=\"line").count(), 5 + 5, "and the legend");
        assert!(speedups(&Table { scaling: None, ..table }, &filled).is_empty());
    }
}
