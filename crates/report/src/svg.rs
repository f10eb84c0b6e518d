//! Charts as static SVG in the page, for browsers without scripts.

use phalanx_run::svg::{Anchor, Scale, Svg};

use super::chart::{Chart, Kind, Line, Unit, XAxis};
use super::numbers::{tick, ticks};
use super::thin::thinned;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 34.0;

/// Draws a chart with at most about `limit` points for each line.
pub(crate) fn svg(chart: &Chart, limit: usize) -> String {
    let stacked = stacked(chart);
    let places = chart.lines.iter().flat_map(|line| line.places(chart.across).iter().copied());
    let x = Scale::over(places, LEFT, WIDTH - RIGHT);
    let y = height_scale(chart, &stacked);
    let mut svg = Svg::element(WIDTH, HEIGHT, "plot", &described(chart));
    let labelled = |at: f64, unit| (at, tick(at, unit));
    let of_y = ticks(y.low, y.high, 5, chart.unit).into_iter().map(|at| labelled(at, chart.unit));
    svg.y_axis(&y, (LEFT, WIDTH - RIGHT), "class=\"grid\"", &of_y.collect::<Vec<_>>());
    let of_x = ticks(x.low, x.high, 6, Unit::Plain).into_iter().map(|at| labelled(at, Unit::Plain));
    svg.x_axis(&x, HEIGHT - BOTTOM + 16.0, &of_x.collect::<Vec<_>>());
    let across = match chart.across {
        XAxis::Steps => "steps",
        XAxis::Clock => "seconds",
        XAxis::Ranks => "ranks",
    };
    svg.text((WIDTH - RIGHT, HEIGHT - 3.0), Anchor::End, "", across);
    for (line, bounds) in chart.lines.iter().zip(&stacked) {
        draw_line(&mut svg, chart, line, bounds, (&x, &y), limit);
    }
    svg.finish()
}

/// Returns the scale of the y axis.
fn height_scale(chart: &Chart, stacked: &[(Vec<f64>, Vec<f64>)]) -> Scale {
    let floor = (chart.kind == Kind::Areas).then_some(0.0);
    let values = stacked.iter().flat_map(|(_, top)| top.iter().copied()).chain(floor);
    let mut y = Scale::over(values, HEIGHT - BOTTOM, TOP);
    if chart.kind == Kind::Lines {
        // Keep lines off the edges.
        let room = 0.04 * (y.high - y.low);
        y.low = if (0.0..room).contains(&y.low) { 0.0 } else { y.low - room };
        y.high += room;
    }
    y
}

/// Draws a line, or an area between its lower and upper bound. A single point is a dot.
fn draw_line(
    svg: &mut Svg,
    chart: &Chart,
    line: &Line,
    (bottom, top): &(Vec<f64>, Vec<f64>),
    (x, y): (&Scale, &Scale),
    limit: usize,
) {
    let places = line.places(chart.across);
    let mut kept = thinned(top, limit);
    kept.retain(|at| places.get(*at).is_some_and(|x| x.is_finite()) && top[*at].is_finite());
    let point = |at: &usize, heights: &[f64]| (x.at(places[*at]), y.at(heights[*at]));
    let mut path: Vec<_> = kept.iter().map(|at| point(at, top)).collect();
    let class = format!("s{} d{}", line.colour, line.dash);
    match (chart.kind, path.as_slice()) {
        (Kind::Lines, [single]) => svg.disc(*single, 3.5, &format!("class=\"dot {class}\"")),
        (Kind::Lines, _) => svg.polyline(&path, &format!("class=\"line {class}\"")),
        (Kind::Areas, _) => {
            path.extend(kept.iter().rev().map(|at| point(at, bottom)));
            svg.polygon(&path, &format!("class=\"area s{}\"", line.colour));
        }
    }
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

/// Returns a text description of a chart for screen readers.
fn described(chart: &Chart) -> String {
    let ends = |line: &Line| {
        let (first, last) = (line.values.first()?, line.values.last()?);
        let [first, last] = [*first, *last].map(|value| super::numbers::with_unit(value, chart.unit));
        Some(if line.values.len() == 1 {
            format!("{} {last}", line.name)
        } else {
            format!("{} from {first} to {last}", line.name)
        })
    };
    let descriptions: Vec<String> = chart.lines.iter().take(6).filter_map(ends).collect();
    let more = chart.lines.len().saturating_sub(6);
    let more = if more > 0 { format!("; and {more} more lines") } else { String::new() };
    format!("{}: {}{more}", chart.title, descriptions.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Column;

    #[test]
    fn all_numbers_give_a_sound_picture() {
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
