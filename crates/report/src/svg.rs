//! Charts as pictures in the page: what is seen where no script runs.

use std::fmt::Write as _;

use super::chart::{Across, Chart, Kind};
use super::html::escape;
use super::numbers::{tick, ticks};
use super::thin::thinned;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 34.0;

/// Where a number lies on the picture.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn over(numbers: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let finite = numbers.filter(|number| number.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), n| (l.min(n), h.max(n)));
        // What differs by rounding alone is one number.
        let apart = high - low > 1e-9 * low.abs().max(high.abs());
        let (low, high) = match (low.is_finite(), apart) {
            (true, true) => (low, high),
            (true, false) => (low - 0.5 * low.abs().max(1e-9), low + 0.5 * low.abs().max(1e-9)),
            (false, _) => (0.0, 1.0),
        };
        Self { low, high, from, to }
    }

    fn at(&self, number: f64) -> f64 {
        self.from + (number - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// The picture of a chart, of at most about `limit` points a line.
pub(crate) fn svg(chart: &Chart, limit: usize) -> String {
    let stacked = stacked(chart);
    let places = chart.lines.iter().flat_map(|line| line.places(chart.across).iter().copied());
    let x = Scale::over(places, LEFT, WIDTH - RIGHT);
    let floor = (chart.kind == Kind::Areas).then_some(0.0);
    let values = stacked.iter().flat_map(|(_, top)| top.iter().copied()).chain(floor);
    let mut y = Scale::over(values, HEIGHT - BOTTOM, TOP);
    if chart.kind == Kind::Lines {
        // Lines do not run along the edges.
        let room = 0.04 * (y.high - y.low);
        y.low = if (0.0..room).contains(&y.low) { 0.0 } else { y.low - room };
        y.high += room;
    }
    let mut out = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&described(chart))
    );
    for at in ticks(y.low, y.high, 5, chart.unit) {
        let (py, text) = (y.at(at), escape(&tick(at, chart.unit)).into_owned());
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {py:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            py + 4.0
        );
    }
    for at in ticks(x.low, x.high, 6, super::chart::Unit::Plain) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            x.at(at),
            HEIGHT - BOTTOM + 16.0,
            if x.at(at) > WIDTH - RIGHT - 16.0 { "end" } else { "middle" },
            tick(at, super::chart::Unit::Plain)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 3.0,
        match chart.across {
            Across::Steps => "steps",
            Across::Clock => "seconds",
            Across::Ranks => "ranks",
        }
    );
    for (line, (bottom, top)) in chart.lines.iter().zip(&stacked) {
        let places = line.places(chart.across);
        let kept = thinned(top, limit);
        let kept =
            kept.iter().filter(|at| places.get(**at).is_some_and(|x| x.is_finite()) && top[**at].is_finite());
        let point = |at: &usize, height: f64| format!("{:.1},{:.1}", x.at(places[*at]), y.at(height));
        let mut path: Vec<String> = kept.clone().map(|at| point(at, top[*at])).collect();
        let class = format!("s{} d{}", line.colour, line.dash);
        match (chart.kind, path.len()) {
            (_, 0) => {}
            (Kind::Lines, 1) => {
                let (px, py) = path[0].split_once(',').unwrap_or_default();
                let _ = write!(out, "<circle class=\"dot {class}\" cx=\"{px}\" cy=\"{py}\" r=\"3.5\"/>");
            }
            (Kind::Lines, _) => {
                let _ = write!(out, "<polyline class=\"line {class}\" points=\"{}\"/>", path.join(" "));
            }
            (Kind::Areas, _) => {
                let below: Vec<String> = kept.map(|at| point(at, bottom[*at])).collect();
                path.extend(below.into_iter().rev());
                let _ =
                    write!(out, "<polygon class=\"area s{}\" points=\"{}\"/>", line.colour, path.join(" "));
            }
        }
    }
    out.push_str("</svg>");
    out
}

/// Returns the lower and upper bound of each area, stacked on those before it.
fn stacked(chart: &Chart) -> Vec<(Vec<f64>, Vec<f64>)> {
    let mut ground: Vec<f64> = Vec::new();
    let lines = chart.lines.iter().map(|line| match chart.kind {
        Kind::Lines => (Vec::new(), line.values.clone()),
        Kind::Areas => {
            ground.resize(line.values.len(), 0.0);
            let top: Vec<f64> = ground.iter().zip(&line.values).map(|(low, part)| low + part).collect();
            (std::mem::replace(&mut ground, top.clone()), top)
        }
    });
    lines.collect()
}

/// A chart in a sentence, for those who do not see it.
fn described(chart: &Chart) -> String {
    let ends = |line: &super::chart::Line| {
        let (first, last) = (line.values.first()?, line.values.last()?);
        let [first, last] = [*first, *last].map(|value| super::numbers::with_unit(value, chart.unit));
        Some(if line.values.len() == 1 {
            format!("{} {last}", line.name)
        } else {
            format!("{} from {first} to {last}", line.name)
        })
    };
    let told: Vec<String> = chart.lines.iter().take(6).filter_map(ends).collect();
    let more = chart.lines.len().saturating_sub(6);
    let more = if more > 0 { format!("; and {more} more lines") } else { String::new() };
    format!("{}: {}{more}", chart.title, told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Line, Unit};
    use crate::columns::Column;

    #[test]
    fn whatever_the_numbers_the_picture_is_sound() {
        let line = |values: &[f64]| {
            let mut column = Column::default();
            values.iter().enumerate().for_each(|(at, value)| column.push(at as f64, at as f64, *value));
            Line::of("a <b>", "k", &column)
        };
        for (values, shapes) in [
            (&[][..], 0),
            (&[1.0][..], 1),
            (&[0.0, 0.0][..], 1),
            (&[f64::NAN, 1.0, f64::INFINITY, 2.0][..], 1),
            (&[-1e300, 1e300][..], 1),
            (&[5e-324, 0.0][..], 1),
            (&[0.001, 0.001 + 2e-19, 0.001][..], 1),
        ] {
            for kind in [Kind::Lines, Kind::Areas] {
                let mut chart = Chart::lines("x & y", Unit::Bytes, vec![line(values)]);
                chart.kind = kind;
                let svg = svg(&chart, 100);
                assert!(
                    !svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b>"),
                    "{values:?}: {svg}"
                );
                let drawn =
                    ["<circle", "<polyline", "<polygon"].iter().map(|shape| svg.matches(shape).count());
                assert_eq!(drawn.sum::<usize>(), shapes, "{values:?}: {svg}");
                assert!(svg.contains("x &amp; y"), "{svg}");
            }
        }
        let chart = Chart {
            kind: Kind::Areas,
            ..Chart::lines("x", Unit::Plain, vec![line(&[1.0, 1.0]), line(&[3.0, 1.0])])
        };
        assert_eq!(stacked(&chart)[1], (vec![1.0, 1.0], vec![4.0, 2.0]));
    }
}
