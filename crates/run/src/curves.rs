//! A chart of the losses, or of the measure that leads, over the steps.

use super::Line;
use phalanx_charts::{Axis, Figure, Panel, Series, Unit};

/// Draws the measurements `names` over the step. Names without values are left out. A logged `null` is a gap.
pub fn curves_svg(title: &str, lines: &[Line], names: &[&str]) -> String {
    let series = names.iter().map(|name| {
        let points = lines.iter().filter(|line| line.has(name));
        let points = points.map(|line| (line.step() as f64, line.number(name).unwrap_or(f64::NAN)));
        Series::new(*name, points.collect())
    });
    let series = series.filter(|series| series.points.iter().any(|point| point.1.is_finite())).collect();
    // Losses, or a measure of training and of the test split.
    let subject = names.first().filter(|name| !name.ends_with("loss")).unwrap_or(&"loss");
    let panel = Panel::lines(*subject, Axis::of("steps", Unit::Count), Axis::default(), series);
    Figure::new(title, vec![panel]).svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_drawn_and_missing_ones_are_not() {
        let mut lines: Vec<Line> =
            (1..=5).map(|step| Line::new(step).with("loss", 1.0 / step as f64)).collect();
        lines[4] = Line::new(5).with("loss", 0.2).with("test_loss", 0.5);
        let svg = curves_svg("a <run>", &lines, &["loss", "test_loss", "accuracy"]);
        assert!(svg.contains("a &lt;run&gt;") && svg.contains(">test_loss<") && !svg.contains("accuracy"));
        assert_eq!(svg.matches("<path class=\"line s0\" d=\"M").count(), 2, "the line and the legend");
        assert_eq!(svg.matches("<circle class=\"dot s1\"").count(), 2, "a single value and the legend");
        // A loss that is not finite is a gap.
        lines[2] = Line::new(3).with("loss", f64::NAN);
        let gap = curves_svg("x", &lines, &["loss"]);
        let line = gap.lines().find(|line| line.contains("class=\"line s0\"")).expect("a line");
        assert_eq!(line.matches('M').count(), 2);
        // Neither nothing nor a single point divides by zero.
        for lines in [&lines[..0], &lines[..1]] {
            let svg = curves_svg("x", lines, &["loss"]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
