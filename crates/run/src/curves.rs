//! A chart of the loss over the steps.

use super::Line;
use super::chart::{Panel, Series, panels_svg};

/// Draws the measurements `names` over the step. Names without values are left out.
pub fn curves_svg(title: &str, lines: &[Line], names: &[&str]) -> String {
    let series = names.iter().map(|name| {
        let points = lines.iter().filter_map(|line| Some((line.step() as f64, line.number(name)?)));
        Series { name: (*name).to_owned(), points: points.collect() }
    });
    let series = series.filter(|series| series.points.iter().any(|point| point.1.is_finite())).collect();
    let panel = Panel { x: "steps".to_owned(), series, ..Panel::default() };
    panels_svg(title, &[panel], 1, (720.0, 360.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_drawn_and_what_is_missing_is_not() {
        let lines: Vec<Line> = (1..=5).map(|step| Line::new(step).with("loss", 1.0 / step as f64)).collect();
        let svg = curves_svg("a <run>", &lines, &["loss", "accuracy"]);
        assert!(svg.contains("a &lt;run&gt;") && svg.contains(">loss<") && !svg.contains("accuracy"));
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // Neither nothing nor a single point divides by zero.
        for lines in [&lines[..0], &lines[..1]] {
            let svg = curves_svg("x", lines, &["loss"]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
