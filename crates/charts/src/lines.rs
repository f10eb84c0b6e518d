//! Lines with gaps and dots, and stacked areas.

use std::fmt::Write as _;

use super::panel::Series;
use super::scale::{Scale, drawable};
use super::svg::Svg;

/// Lines of at most this number of points have a dot at each.
const FEW: usize = 12;
/// The radius of the dot of a value without neighbours, and of a point of a short line.
const LONE: f64 = 3.5;
const SMALL: f64 = 2.2;
/// The difference in radius of a dot on another one.
const OVER: f64 = 1.2;
/// The width of areas with a single x value.
const BAR: f64 = 8.0;

/// Returns the stretches of a line between its gaps, in coordinates.
fn stretches(series: &Series, x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let mut stretches = vec![Vec::new()];
    for (across, value) in &series.points {
        let Some(across) = x.place(*across) else { continue };
        match y.place(*value) {
            Some(up) => stretches.last_mut().into_iter().for_each(|stretch| stretch.push((across, up))),
            None => stretches.push(Vec::new()),
        }
    }
    stretches.retain(|stretch| !stretch.is_empty());
    stretches
}

/// Draws lines. Values without neighbours are dots. Of lines in the same place, the later ones are dashed and their dots
/// smaller, so that all are seen.
pub(crate) fn draw_lines(svg: &mut Svg, lines: &[Series], x: &Scale, y: &Scale) {
    let mut drawn: Vec<Vec<Vec<(f64, f64)>>> = Vec::new();
    for series in lines {
        let stretches = stretches(series, x, y);
        let rounded = |(x, y): &(f64, f64)| ((10.0 * x).round(), (10.0 * y).round());
        let places = stretches.iter().map(|stretch| stretch.iter().map(rounded).collect()).collect();
        let is_over = drawn.contains(&places);
        draw_line(svg, series, &stretches, is_over);
        drawn.push(places);
    }
}

/// Draws the stretches of a line.
fn draw_line(svg: &mut Svg, series: &Series, stretches: &[Vec<(f64, f64)>], is_over: bool) {
    let classes = series.style.classes();
    let mut commands = String::new();
    for stretch in stretches.iter().filter(|stretch| stretch.len() > 1) {
        for (number, (x, y)) in stretch.iter().enumerate() {
            let letter = if number == 0 { "M" } else { "L" };
            let _ = write!(commands, "{letter}{x:.1} {y:.1}");
        }
    }
    if !commands.is_empty() {
        let over = if is_over { " over" } else { "" };
        svg.path(&format!("line {classes}{over}"), &commands, None);
    }
    let smaller = if is_over { OVER } else { 0.0 };
    let few = stretches.iter().map(Vec::len).sum::<usize>() <= FEW;
    for stretch in stretches.iter().filter(|stretch| few || stretch.len() == 1) {
        let radius = if stretch.len() == 1 { LONE } else { SMALL } - smaller;
        stretch.iter().for_each(|point| svg.disc(&format!("dot {classes}"), *point, radius));
    }
}

/// Draws areas on top of each other. Missing values count as 0.
pub(crate) fn draw_areas(svg: &mut Svg, areas: &[Series], x: &Scale, y: &Scale) {
    let longest = areas.iter().map(|series| &series.points).max_by_key(|points| points.len());
    let places: Vec<f64> = longest.into_iter().flatten().map(|point| point.0).collect();
    let mut ground = vec![0.0; places.len()];
    for series in areas {
        let part = |at: usize| series.points.get(at).and_then(|point| drawable(point.1)).unwrap_or_default();
        let top: Vec<f64> = ground.iter().enumerate().map(|(at, low)| low + part(at)).collect();
        let class = format!("area {}", series.style.classes());
        let drawn: Vec<usize> = (0..places.len()).filter(|at| x.place(places[*at]).is_some()).collect();
        let point = |at: &usize, heights: &[f64]| (x.at(places[*at]), y.at(heights[*at]));
        match drawn.as_slice() {
            [] => {}
            [only] => {
                let ((middle, high), (_, low)) = (point(only, &top), point(only, &ground));
                svg.rectangle(&class, (middle - 0.5 * BAR, high), (BAR, low - high), None);
            }
            _ => {
                let around = drawn
                    .iter()
                    .map(|at| point(at, &top))
                    .chain(drawn.iter().rev().map(|at| point(at, &ground)));
                let mut commands = String::new();
                for (number, (x, y)) in around.enumerate() {
                    let letter = if number == 0 { "M" } else { "L" };
                    let _ = write!(commands, "{letter}{x:.1} {y:.1}");
                }
                svg.path(&class, &format!("{commands}Z"), None);
            }
        }
        ground = top;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: &[(f64, f64)]) -> (usize, String) {
        let scale = Scale::linear(Some((0.0, 10.0)), 0.0, 10.0);
        let mut svg = Svg::element(10.0, 10.0, "plot", "");
        draw_lines(&mut svg, &[Series::new("a", points.to_vec())], &scale, &scale);
        let text = svg.finish();
        let path = text.split("d=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        (text.matches("<circle").count(), path.to_owned())
    }

    #[test]
    fn missing_values_are_gaps_and_lone_values_dots() {
        let none = f64::NAN;
        assert_eq!(drawn(&[]), (0, String::new()));
        assert_eq!(drawn(&[(1.0, none)]), (0, String::new()));
        assert_eq!(drawn(&[(1.0, 2.0)]), (1, String::new()));
        let points = [(0.0, 1.0), (1.0, 1.0), (2.0, none), (3.0, 2.0), (4.0, none), (5.0, 0.0), (6.0, 0.0)];
        assert_eq!(drawn(&points), (5, "M0.0 1.0L1.0 1.0M5.0 0.0L6.0 0.0".to_owned()));
        let long: Vec<_> =
            (0..30).map(|at| (f64::from(at) / 3.0, if at == 28 { none } else { 1.0 })).collect();
        assert_eq!(drawn(&long).0, 1, "only the value after the gap has a dot");
    }

    #[test]
    fn lines_in_the_same_place_are_both_seen() {
        let scale = Scale::linear(Some((0.0, 10.0)), 0.0, 10.0);
        let line = |up: f64| Series::new("a", (0..30).map(|at| (f64::from(at) / 3.0, up)).collect());
        let dot = || Series::new("b", vec![(1.0, 9.0)]);
        let mut svg = Svg::element(10.0, 10.0, "plot", "");
        draw_lines(&mut svg, &[line(1.0), line(2.0), line(1.0), dot(), dot()], &scale, &scale);
        let text = svg.finish();
        assert_eq!((text.matches("<path").count(), text.matches("s0 over").count()), (3, 1), "{text}");
        assert!(text.contains("r=\"3.5\"") && text.contains("r=\"2.3\""), "{text}");
    }

    #[test]
    fn areas_of_one_place_are_bars() {
        let scale = Scale::linear(Some((0.0, 10.0)), 0.0, 10.0);
        for (count, shapes) in [(0, (0, 0)), (1, (2, 0)), (2, (0, 2))] {
            let area = |height: f64| Series::new("a", (0..count).map(|at| (f64::from(at), height)).collect());
            let mut svg = Svg::element(10.0, 10.0, "plot", "");
            draw_areas(&mut svg, &[area(1.0), area(2.0)], &scale, &scale);
            let text = svg.finish();
            assert_eq!((text.matches("<rect").count(), text.matches("<path").count()), shapes, "{text}");
        }
    }
}
