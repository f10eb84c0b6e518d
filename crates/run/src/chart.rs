//! Line charts: panels in rows with common colours and a common legend.

use serde::Serialize;

use super::svg::{Anchor, COLOURS, GREY, Mark, Scale, Svg, legend_height, tick_label, ticks};

const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;
/// The height of the title above all panels.
const HEAD: f64 = 30.0;
/// The dash patterns of lines. When colours repeat, the next pattern is used.
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

/// A line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The name in the legend. Lines with the same name have the same colour in all panels.
    pub name: String,
    /// The points. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// A pair of axes with lines.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The lines.
    pub series: Vec<Series>,
    /// A marked level and its label.
    pub mark: Option<(f64, String)>,
}

impl Series {
    fn finite(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().copied().filter(|point| point.0.is_finite() && point.1.is_finite())
    }
}

/// Draws panels as SVG, `columns` in a row, each of the given width and height.
pub fn panels_svg(title: &str, panels: &[Panel], columns: usize, (width, height): (f64, f64)) -> String {
    let mut names: Vec<&str> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    let columns = columns.clamp(1, panels.len().max(1));
    let below = HEAD + height * panels.len().div_ceil(columns) as f64;
    let sides = (LEFT, width * columns as f64 - RIGHT);
    let mut svg = Svg::file(width * columns as f64, below + legend_height(&names, sides) + 6.0);
    svg.text((LEFT, 20.0), Anchor::Start, "font-size=\"14\" font-weight=\"bold\"", title);
    for (at, panel) in panels.iter().enumerate() {
        let origin = (width * (at % columns) as f64, HEAD + height * (at / columns) as f64);
        draw(&mut svg, panel, &names, origin, (width, height));
    }
    let entries: Vec<_> = names.iter().map(|name| (*name, Mark::Line(stroke(&names, name)))).collect();
    svg.legend(sides, below + 14.0, &entries);
    svg.finish()
}

/// Returns the SVG attributes of a line: its colour and dash pattern.
fn stroke(names: &[&str], name: &str) -> String {
    let at = names.iter().position(|known| known == &name).unwrap_or_default();
    let dash = DASHES[at / COLOURS.len() % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{dash}", COLOURS[at % COLOURS.len()])
}

/// Draws a panel whose upper left corner is at `(ox, oy)`.
fn draw(svg: &mut Svg, panel: &Panel, names: &[&str], (ox, oy): (f64, f64), (width, height): (f64, f64)) {
    let sides = (ox + LEFT, ox + width - RIGHT);
    let bottom = oy + height - BOTTOM;
    let points = || panel.series.iter().flat_map(Series::finite);
    let x = Scale::over(points().map(|point| point.0), sides.0, sides.1);
    let values = points().map(|point| point.1).chain(panel.mark.iter().map(|mark| mark.0));
    let y = Scale::over(values, bottom, oy + TOP);
    svg.text((sides.0, oy + 18.0), Anchor::Start, "", &panel.title);
    svg.text((sides.1, bottom + 36.0), Anchor::End, GREY, &panel.x);
    svg.y_axis(&y, sides, "stroke=\"#ddd\"", &labelled(&y));
    svg.x_axis(&x, bottom + 18.0, &labelled(&x));
    if let Some((level, label)) = &panel.mark {
        let at = y.at(*level);
        svg.horizontal(at, sides, "stroke=\"#555\" stroke-dasharray=\"4 4\"");
        svg.text((sides.1 - 4.0, at - 4.0), Anchor::End, GREY, label);
    }
    for series in &panel.series {
        let points: Vec<_> = series.finite().map(|point| (x.at(point.0), y.at(point.1))).collect();
        svg.polyline(&points, &stroke(names, &series.name));
    }
}

/// Returns the ticks of a scale with their labels.
fn labelled(scale: &Scale) -> Vec<(f64, String)> {
    ticks(scale.low, scale.high, 5, 1.0).into_iter().map(|tick| (tick, tick_label(tick))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_name_have_one_colour() {
        let series =
            |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        let line = [(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)];
        let panel =
            |series: &[Series]| Panel { title: "a < b".into(), series: series.to_vec(), ..Panel::default() };
        let panels = [panel(&[series("x", &line), series("y", &line)]), panel(&[series("y", &line)])];
        let svg = panels_svg("all", &panels, 2, (300.0, 200.0));
        assert_eq!(svg.matches("<polyline").count(), 3);
        // Its lines and its place in the legend.
        assert_eq!(svg.matches(COLOURS[1]).count(), 3);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
        // Twelve names need dashes; nothing and single points divide nothing by zero.
        let many: Vec<Series> = (0..12).map(|n| series(&n.to_string(), &[(1.0, 1.0)])).collect();
        let svg = panels_svg("many", &[panel(&many), panel(&[])], 1, (300.0, 200.0));
        assert_eq!(svg.matches("stroke-dasharray").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
