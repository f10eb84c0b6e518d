//! Charts as data: what the page draws, with and without scripts.

use serde::{Serialize, Serializer};

use super::columns::Column;
use super::thin::thinned;

/// The unit of a chart's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    /// Numbers.
    Plain,
    /// Bytes.
    Bytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// Parts of a whole that is 1.
    Share,
    /// Percent of one CPU core or GPU.
    Percent,
    /// Seconds.
    Seconds,
    /// Watts.
    Watts,
    /// Joules.
    Joules,
}

/// The quantity on the x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Across {
    /// Steps, or seconds of training where they are known.
    Steps,
    /// Seconds by the clock.
    Clock,
    /// Numbers of ranks, which lines keep where others have steps.
    Ranks,
}

/// The style of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Over each other.
    Lines,
    /// On top of each other, filled, at common places.
    Areas,
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Chart {
    /// Its name in the page.
    pub(crate) id: String,
    /// The title.
    pub(crate) title: String,
    /// The style.
    pub(crate) kind: Kind,
    /// The x axis.
    pub(crate) across: Across,
    /// The unit of its numbers.
    pub(crate) unit: Unit,
    /// Its lines.
    pub(crate) lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Line {
    /// The name in the legend.
    pub(crate) name: String,
    /// The key of its numbers, for points that come later.
    pub(crate) key: String,
    /// The run, by its place in the report.
    pub(crate) run: usize,
    /// The colour, below [`COLOURS`].
    pub(crate) colour: usize,
    /// The dashes, below [`DASHES`].
    pub(crate) dash: usize,
    /// The steps.
    #[serde(serialize_with = "short")]
    pub(crate) steps: Vec<f64>,
    /// The seconds; empty if they are not known.
    #[serde(serialize_with = "short")]
    pub(crate) seconds: Vec<f64>,
    /// The numbers.
    #[serde(serialize_with = "short")]
    pub(crate) values: Vec<f64>,
}

/// Colours of lines, as the style sheet has them.
pub(crate) const COLOURS: usize = 8;
/// Dashes of lines, as the style sheet has them.
pub(crate) const DASHES: usize = 4;

impl Line {
    /// A line of all numbers of a column.
    pub(crate) fn of(name: &str, key: &str, column: &Column) -> Self {
        // Of a resumed run some lines may be older than their seconds.
        let known = column.seconds.iter().all(|seconds| seconds.is_finite());
        Self {
            name: name.to_owned(),
            key: key.to_owned(),
            run: 0,
            colour: 0,
            dash: 0,
            steps: column.steps.clone(),
            seconds: if known { column.seconds.clone() } else { Vec::new() },
            values: column.values.clone(),
        }
    }

    /// Keeps the points of these numbers.
    fn keep(&mut self, kept: &[usize]) {
        let of = |all: &Vec<f64>| {
            if all.is_empty() { Vec::new() } else { kept.iter().map(|at| all[*at]).collect() }
        };
        (self.steps, self.seconds, self.values) = (of(&self.steps), of(&self.seconds), of(&self.values));
    }

    /// Where its points are, from left to right.
    pub(crate) fn places(&self, across: Across) -> &[f64] {
        match across {
            Across::Steps | Across::Ranks => &self.steps,
            Across::Clock => &self.seconds,
        }
    }
}

impl Chart {
    /// A chart of lines over steps.
    pub(crate) fn lines(title: &str, unit: Unit, lines: Vec<Line>) -> Self {
        let (id, title) = (String::new(), title.to_owned());
        Self { id, title, kind: Kind::Lines, across: Across::Steps, unit, lines }
    }

    /// Leaves at most about `limit` points of each line, extremes among them.
    pub(crate) fn thin(&mut self, limit: usize) {
        match self.kind {
            Kind::Lines => {
                for line in &mut self.lines {
                    let kept = thinned(&line.values, limit);
                    if kept.len() < line.values.len() {
                        line.keep(&kept);
                    }
                }
            }
            Kind::Areas => {
                // What lies on top of each other keeps its common places: those where the sum is extreme.
                let count = self.lines.iter().map(|line| line.values.len()).min().unwrap_or_default();
                let sum = |at: usize| self.lines.iter().map(|line| line.values[at]).sum::<f64>();
                let kept = thinned(&(0..count).map(sum).collect::<Vec<_>>(), limit);
                self.lines.iter_mut().for_each(|line| line.keep(&kept));
            }
        }
    }
}

/// Numbers with six significant digits.
fn short<S: Serializer>(numbers: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| {
        let rounded = format!("{number:.5e}").parse().unwrap_or(*number);
        Short(rounded)
    }))
}

/// A number without needless characters: whole ones without a point.
struct Short(f64);

impl Serialize for Short {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 {
            return serializer.serialize_i64(self.0 as i64);
        }
        serializer.serialize_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let mut column = Column::default();
        for value in [0.123_456_789, 3.0, 1e-9, f64::NAN, 123_456_789.0] {
            column.push(1.0, f64::NAN, value);
        }
        let line = serde_json::to_string(&Line::of("a", "k", &column)).expect("JSON");
        assert!(line.ends_with("\"seconds\":[],\"values\":[0.123457,3,1e-9,null,123457000]}"), "{line}");
    }

    #[test]
    fn areas_keep_common_places() {
        let line = |peak: usize| {
            let mut column = Column::default();
            (0..1000).for_each(|at| column.push(at as f64, at as f64, if at == peak { 9.0 } else { 1.0 }));
            Line::of("a", "k", &column)
        };
        let mut chart = Chart::lines("x", Unit::Bytes, vec![line(333), line(777)]);
        let mut lines = chart.clone();
        chart.kind = Kind::Areas;
        chart.thin(100);
        lines.thin(100);
        let points = |chart: &Chart| chart.lines.iter().map(|line| line.values.len()).sum::<usize>();
        assert_eq!(chart.lines[0].steps, chart.lines[1].steps);
        assert!(chart.lines[0].steps.contains(&333.0) && chart.lines[0].steps.contains(&777.0));
        assert!(points(&chart) <= 200 && points(&lines) <= 200, "{}", points(&chart));
        assert!(lines.lines[0].steps.contains(&333.0) && lines.lines[1].steps.contains(&777.0));
    }
}
