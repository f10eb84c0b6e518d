//! Charts as static SVG in the page, for browsers without scripts.

use phalanx_charts::{Axis, AxisScale, Content, HEIGHT, Panel, Series, Unit, WIDTH, plot};

use super::chart::{Chart, Kind, Line, XAxis};
use super::numbers::with_unit;

/// Draws a chart with at most about `limit` points for each line.
pub(crate) fn svg(chart: &Chart, limit: usize) -> String {
    plot(&panel(chart, limit), (WIDTH, HEIGHT), &described(chart))
}

/// Returns the panel of a chart. Its styles are those of the lines.
fn panel(chart: &Chart, limit: usize) -> Panel {
    let mut chart = chart.clone();
    chart.thin(limit);
    let x = match chart.across {
        XAxis::Steps => Axis::of("steps", Unit::Count),
        XAxis::Clock => Axis::of("time", Unit::Seconds),
        XAxis::Ranks => Axis::of("ranks", Unit::Count),
    };
    let scale = if chart.logarithmic { AxisScale::Logarithmic } else { AxisScale::Linear };
    let series = |line: &Line| Series {
        name: line.name.clone(),
        style: line.style.unwrap_or_default(),
        points: line.places(chart.across).iter().copied().zip(line.values.iter().copied()).collect(),
    };
    let series = chart.lines.iter().map(series).collect();
    let content = match chart.kind {
        Kind::Lines => Content::Lines(series),
        Kind::Areas => Content::Areas(series),
    };
    let y = Axis { scale, ..Axis::of("", chart.unit) };
    Panel { content, ..Panel::lines(chart.title.clone(), x, y, Vec::new()) }
}

/// Returns a text description of a chart for screen readers.
fn described(chart: &Chart) -> String {
    let ends = |line: &Line| {
        let finite = || line.values.iter().copied().filter(|value| value.is_finite());
        let (first, last) = (finite().next()?, finite().next_back()?);
        let [first, last] = [first, last].map(|value| with_unit(value, chart.unit));
        Some(if line.values.len() == 1 {
            format!("{} {last}", line.name)
        } else {
            format!("{} from {first} to {last}", line.name)
        })
    };
    let descriptions: Vec<String> = chart.lines.iter().take(6).filter_map(ends).collect();
    let more = chart.lines.len().saturating_sub(6);
    let more = match more {
        0 => String::new(),
        1 => "; and 1 more line".to_owned(),
        more => format!("; and {more} more lines"),
    };
    format!("{}: {}{more}", chart.title, descriptions.join("; "))
}

/// Returns a histogram over the integers from 0 as a panel of bars.
pub(crate) fn histogram(title: &str, counts: &[f64]) -> Panel {
    let bar = |(number, count): (usize, &f64)| phalanx_charts::Bar {
        name: number.to_string(),
        values: Some(vec![*count]),
        ..phalanx_charts::Bar::default()
    };
    let bars = counts.iter().enumerate().map(bar).collect();
    Panel::bars(title, Axis::default(), Axis::of("", Unit::Count), bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Column;

    fn line(values: &[f64]) -> Line {
        let mut column = Column::default();
        values.iter().enumerate().for_each(|(at, value)| column.push(at as f64, at as f64, *value));
        Line::of("a <b>", "k", &column)
    }

    #[test]
    fn all_numbers_give_a_sound_picture() {
        for values in [&[][..], &[1.0], &[0.0, 0.0], &[f64::NAN, 1.0, f64::INFINITY, 2.0], &[-1e200, 1e200]] {
            for kind in [Kind::Lines, Kind::Areas] {
                let chart = Chart { kind, ..Chart::lines("x & y", Unit::Bytes, vec![line(values)]) };
                let svg = svg(&chart, 100);
                let sound = !svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b>");
                assert!(sound && svg.contains("x &amp; y"), "{values:?}: {svg}");
                let drawn =
                    ["class=\"dot", "class=\"line", "class=\"area"].iter().any(|shape| svg.contains(shape));
                assert_eq!(drawn, values.iter().any(|value| value.is_finite()), "{values:?}: {svg}");
            }
        }
    }

    #[test]
    fn descriptions_name_the_ends_of_lines() {
        let chart = Chart::lines("loss", Unit::Plain, vec![line(&[f64::NAN, 3.0, 1.0, f64::NAN]), line(&[])]);
        assert_eq!(described(&chart), "loss: a <b> from 3.000 to 1.000");
        let seven = Chart::lines("loss", Unit::Plain, vec![line(&[2.0]); 7]);
        assert!(described(&seven).ends_with("a <b> 2.000; and 1 more line"));
    }
}
