//! The time series of a run by name, over steps and seconds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object_tail::Object;

/// A measured value with its key, step and time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    /// The key: `metrics/loss`, `rank/1/loss`, `usage/0/cpu_percent`.
    pub(crate) key: String,
    /// The step.
    pub(crate) step: f64,
    /// Seconds of training; for a process, seconds of wall time. NaN where unknown.
    pub(crate) seconds: f64,
    /// The value; NaN if it was not finite.
    pub(crate) value: f64,
}

/// A time series.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Column {
    /// The steps.
    pub(crate) steps: Vec<f64>,
    /// The seconds, NaN where unknown.
    pub(crate) seconds: Vec<f64>,
    /// The values, NaN where they were not finite.
    pub(crate) values: Vec<f64>,
}

impl Column {
    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of values that are finite.
    pub(crate) fn finite(&self) -> usize {
        self.values.iter().filter(|value| value.is_finite()).count()
    }

    /// Returns the last finite value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.values.iter().copied().rfind(|value| value.is_finite())
    }

    /// Appends a value.
    pub(crate) fn push(&mut self, step: f64, seconds: f64, value: f64) {
        self.steps.push(step);
        self.seconds.push(seconds);
        self.values.push(value);
    }
}

/// All time series of a run, in the order of their first appearance.
#[derive(Debug, Clone, Default)]
pub(crate) struct Columns {
    order: Vec<String>,
    columns: BTreeMap<String, Column>,
}

impl Columns {
    /// Appends a point to its column.
    pub(crate) fn push(&mut self, point: Point) {
        if !self.columns.contains_key(&point.key) {
            self.order.push(point.key.clone());
        }
        self.columns.entry(point.key).or_default().push(point.step, point.seconds, point.value);
    }

    /// Returns the column of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Column> {
        self.columns.get(key)
    }

    /// Returns the keys with the prefix `start`, without it, in their order.
    pub(crate) fn under<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        self.order.iter().filter_map(move |key| key.strip_prefix(start))
    }

    /// Returns the ranks with columns under `start`: `rank/` or `usage/`.
    pub(crate) fn ranks(&self, start: &str) -> Vec<usize> {
        let mut ranks: Vec<usize> =
            self.under(start).filter_map(|rest| rest.split('/').next()?.parse().ok()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

/// The keys of a line that are coordinates, not measurements.
const PLACES: [&str; 5] = ["step", "epoch", "rank", "seconds", "workers"];

fn number(line: &Object, name: &str) -> Option<f64> {
    line.get(name)?.as_f64().filter(|value| value.is_finite())
}

fn points_of(line: &Object, start: &str) -> Vec<Point> {
    let step = number(line, "step").unwrap_or_default();
    let seconds = number(line, "seconds").unwrap_or(f64::NAN);
    let measures = line.iter().filter(|(name, _)| !PLACES.contains(&name.as_str()));
    // Numbers that are not finite are logged as null. They are gaps.
    let number = |value: &Value| if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
    let measures = measures.filter_map(|(name, value)| Some((name, number(value)?)));
    measures.map(|(name, value)| Point { key: format!("{start}{name}"), step, seconds, value }).collect()
}

/// Returns the points of a line of `metrics.jsonl`.
pub(crate) fn of_metrics(line: &Object) -> Vec<Point> {
    points_of(line, "metrics/")
}

/// Returns the points of a line of `metrics-by-rank.jsonl`, including the time of the step.
pub(crate) fn of_rank(line: &Object) -> Vec<Point> {
    let start = format!("rank/{}/", number(line, "rank").unwrap_or_default());
    let mut points = points_of(line, &start);
    if let (Some(step), Some(seconds)) = (number(line, "step"), number(line, "seconds")) {
        points.push(Point { key: format!("{start}seconds"), step, seconds, value: seconds });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: &Value) -> Object {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn numbers_are_found_and_the_rest_is_not() {
        let line = object(
            &json!({"step": 3, "loss": 0.5, "epoch": 1, "lr": null, "seconds": 2.5, "warnings": ["x"]}),
        );
        let points = of_metrics(&line);
        let point = Point { key: "metrics/loss".into(), step: 3.0, seconds: 2.5, value: 0.5 };
        assert_eq!(points[0], point);
        assert!(points.len() == 2 && points[1].key == "metrics/lr" && points[1].value.is_nan(), "a gap");
        let mut column = Column::default();
        [1.0, f64::NAN, 3.0, f64::NAN].into_iter().for_each(|value| column.push(1.0, 1.0, value));
        assert_eq!((column.len(), column.finite(), column.last()), (4, 2, Some(3.0)));
        let mut columns = Columns::default();
        for (rank, step) in [(1, 1), (0, 1), (1, 2)] {
            let line = object(&json!({"step": step, "rank": rank, "seconds": 0.5, "loss": 1.0}));
            of_rank(&line).into_iter().for_each(|point| columns.push(point));
        }
        assert_eq!(columns.ranks("rank/"), [0, 1]);
        assert_eq!(columns.get("rank/1/loss").expect("losses").steps, [1.0, 2.0]);
        assert_eq!(columns.under("rank/0/").collect::<Vec<_>>(), ["loss", "seconds"]);
    }
}
