//! The data of charts. The page draws them with and without scripts.

use phalanx_charts::{Style, Unit, pressed_flat};
use serde::{Serialize, Serializer};

use super::columns::Column;
use super::thin::thinned;

/// The quantity on the x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum XAxis {
    /// Steps, or seconds of training if known.
    Steps,
    /// Seconds of wall time.
    Clock,
    /// Numbers of ranks, stored in the field `steps` of lines.
    Ranks,
}

/// The style of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Separate lines.
    Lines,
    /// Stacked, filled areas with common x values.
    Areas,
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Chart {
    /// The id of its element in the page.
    pub(crate) id: String,
    /// The title.
    pub(crate) title: String,
    /// The style.
    pub(crate) kind: Kind,
    /// The x axis.
    pub(crate) across: XAxis,
    /// The unit of its numbers.
    pub(crate) unit: Unit,
    /// True if the y axis is logarithmic by default.
    pub(crate) logarithmic: bool,
    /// Its lines.
    pub(crate) lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Line {
    /// The name in the legend.
    pub(crate) name: String,
    /// The key of its numbers, for live updates.
    pub(crate) key: String,
    /// The index of the run in the report.
    pub(crate) run: usize,
    /// The style; `None` for that of its name on this page.
    #[serde(flatten)]
    pub(crate) style: Option<Style>,
    /// The steps.
    #[serde(serialize_with = "serialize_compact")]
    pub(crate) steps: Vec<f64>,
    /// The seconds; empty if unknown.
    #[serde(serialize_with = "serialize_compact")]
    pub(crate) seconds: Vec<f64>,
    /// The values. NaN is a gap.
    #[serde(serialize_with = "serialize_compact")]
    pub(crate) values: Vec<f64>,
}

impl Line {
    /// Creates a line from a column.
    pub(crate) fn of(name: &str, key: &str, column: &Column) -> Self {
        // Some lines of a resumed run may lack seconds.
        let known = column.seconds.iter().all(|seconds| seconds.is_finite());
        Self {
            name: name.to_owned(),
            key: key.to_owned(),
            run: 0,
            style: None,
            steps: column.steps.clone(),
            seconds: if known { column.seconds.clone() } else { Vec::new() },
            values: column.values.clone(),
        }
    }

    /// Keeps only the points at the indices `kept`.
    fn keep(&mut self, kept: &[usize]) {
        let of = |all: &Vec<f64>| {
            if all.is_empty() { Vec::new() } else { kept.iter().map(|at| all[*at]).collect() }
        };
        (self.steps, self.seconds, self.values) = (of(&self.steps), of(&self.seconds), of(&self.values));
    }

    /// Returns the x values of its points, in ascending order.
    pub(crate) fn places(&self, across: XAxis) -> &[f64] {
        match across {
            XAxis::Steps | XAxis::Ranks => &self.steps,
            XAxis::Clock => &self.seconds,
        }
    }
}

impl Chart {
    /// Creates a chart of lines over steps.
    pub(crate) fn lines(title: &str, unit: Unit, lines: Vec<Line>) -> Self {
        let (id, title) = (String::new(), title.to_owned());
        Self { id, title, kind: Kind::Lines, across: XAxis::Steps, unit, logarithmic: false, lines }
    }

    /// Returns true if it has no number except 0.
    pub(crate) fn is_blank(&self) -> bool {
        let mut values = self.lines.iter().flat_map(|line| &line.values);
        !values.any(|value| value.is_finite() && *value != 0.0)
    }

    /// Returns true if a linear axis would press a line flat.
    pub(crate) fn is_flat(&self) -> bool {
        let is_share = matches!(self.unit, Unit::Share | Unit::Percent);
        self.kind == Kind::Lines
            && !is_share
            && pressed_flat(self.lines.iter().map(|line| line.values.as_slice()))
    }

    /// Reduces each line to about `limit` points and keeps the extremes.
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
                // Stacked lines keep common x values: those where the sum is extreme.
                let count = self.lines.iter().map(|line| line.values.len()).min().unwrap_or_default();
                let sum = |at: usize| self.lines.iter().map(|line| line.values[at]).sum::<f64>();
                let kept = thinned(&(0..count).map(sum).collect::<Vec<_>>(), limit);
                self.lines.iter_mut().for_each(|line| line.keep(&kept));
            }
        }
    }
}

/// Serialises numbers with six significant digits.
fn serialize_compact<S: Serializer>(numbers: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| {
        let rounded = format!("{number:.5e}").parse().unwrap_or(*number);
        CompactNumber(rounded)
    }))
}

/// A number that serialises as an integer if it is one.
struct CompactNumber(f64);

impl Serialize for CompactNumber {
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
