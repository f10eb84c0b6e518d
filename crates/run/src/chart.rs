//! Lines over numbers, as a picture that every browser shows: panels side by side, which share their colours.

use std::fmt::Write as _;

use serde::Serialize;

const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;
/// The title above all panels.
const HEAD: f64 = 30.0;
/// A line of the legend.
const LINE: f64 = 18.0;
/// Colours that people with any kind of sight can tell apart next to each other, dark enough on white.
const COLOURS: [&str; 10] = [
    "#1f6feb", "#d1242f", "#2da44e", "#8250df", "#bf8700", "#0a7b83", "#c0399f", "#57606a", "#953800",
    "#5e6b00",
];
/// From the second round of colours on lines are dashed.
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The name in the legend. Lines of one name have one colour in all panels.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A pair of axes with lines.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// Its lines. What is not finite is left out.
    pub series: Vec<Series>,
    /// A level that is marked, with what it is.
    pub mark: Option<(f64, String)>,
}

/// Renders panels as SVG, `columns` in a row, each of the given width and height.
pub fn panels_svg(title: &str, panels: &[Panel], columns: usize, (width, height): (f64, f64)) -> String {
    let mut names: Vec<&str> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    let columns = columns.clamp(1, panels.len().max(1));
    let rows = panels.len().div_ceil(columns);
    let whole = width * columns as f64;
    let (entries, legend) = legend(&names, whole);
    let below = HEAD + height * rows as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {whole} {:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" \
         font-size=\"14\" font-weight=\"bold\">{}</text>\n",
        below + legend,
        escape(title)
    );
    for (at, panel) in panels.iter().enumerate() {
        let origin = (width * (at % columns) as f64, HEAD + height * (at / columns) as f64);
        draw(&mut svg, panel, &names, origin, (width, height));
    }
    for (name, (x, y)) in names.iter().zip(entries) {
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}h18\" fill=\"none\" {}/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            below + y - 4.0,
            stroke(&names, name),
            x + 24.0,
            below + y,
            escape(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where the names of lines stand below the panels, and how high that is.
fn legend(names: &[&str], width: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (LEFT, 14.0);
    let mut places = Vec::new();
    for name in names {
        // About 6.4 units a letter.
        let long = 24.0 + 6.4 * name.chars().count() as f64 + 18.0;
        if x > LEFT && x + long > width - RIGHT {
            (x, y) = (LEFT, y + LINE);
        }
        places.push((x, y));
        x += long;
    }
    (places, y + 10.0)
}

/// The colour and the dashes of a line.
fn stroke(names: &[&str], name: &str) -> String {
    let at = names.iter().position(|known| known == &name).unwrap_or_default();
    let dash = DASHES[at / COLOURS.len() % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    format!("stroke=\"{}\" stroke-width=\"1.5\"{dash}", COLOURS[at % COLOURS.len()])
}

fn draw(svg: &mut String, panel: &Panel, names: &[&str], (ox, oy): (f64, f64), (width, height): (f64, f64)) {
    let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let points = || panel.series.iter().flat_map(|series| &series.points).filter(finite);
    let (x0, x1) = bounds(points().map(|point| point.0));
    let (y0, y1) = bounds(points().map(|point| point.1).chain(panel.mark.iter().map(|mark| mark.0)));
    let (left, right) = (ox + LEFT, ox + width - RIGHT);
    let (top, bottom) = (oy + TOP, oy + height - BOTTOM);
    let x = |v: f64| left + (v - x0) / (x1 - x0) * (right - left);
    let y = |v: f64| bottom - (v - y0) / (y1 - y0) * (bottom - top);
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{:.1}\">{}</text><text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\" \
         fill=\"#555\">{}</text>",
        oy + 18.0,
        escape(&panel.title),
        bottom + 36.0,
        escape(&panel.x)
    );
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let (vx, vy) = (x0 + part * (x1 - x0), y0 + part * (y1 - y0));
        let (px, py) = (x(vx), y(vy));
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {py:.1}H{right:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text><text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left - 6.0,
            py + 4.0,
            short(vy),
            bottom + 18.0,
            if x1 - x0 >= 8.0 { format!("{vx:.0}") } else { short(vx) },
        );
    }
    if let Some((level, what)) = &panel.mark {
        let at = y(*level);
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"#555\" stroke-dasharray=\"4 4\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            right - 4.0,
            at - 4.0,
            escape(what)
        );
    }
    for series in &panel.series {
        let path: Vec<String> = series
            .points
            .iter()
            .filter(finite)
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        if !path.is_empty() {
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" {} points=\"{}\"/>",
                stroke(names, &series.name),
                path.join(" ")
            );
        }
    }
}

/// The smallest and the largest number, apart.
fn bounds(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low.is_finite() && high > low {
        (low, high)
    } else if low.is_finite() {
        (low - 0.5, low + 0.5)
    } else {
        (0.0, 1.0)
    }
}

/// A number with three significant digits.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 || (1e-3..1e4).contains(&value.abs()) {
        let digits = (2 - value.abs().max(1e-3).log10().floor() as i32).clamp(0, 5) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.2e}")
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
