//! The loss over the steps, as a picture that every browser shows.

use std::fmt::Write as _;

use super::Line;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 36.0;
const COLOURS: [&str; 4] = ["#1f6feb", "#d1242f", "#2da44e", "#8250df"];

/// Draws `names` (numbers of the lines) over the step. Names that no line has are left out.
pub fn curves_svg(title: &str, lines: &[Line], names: &[&str]) -> String {
    let series: Vec<(&str, Vec<(f64, f64)>)> = names
        .iter()
        .map(|name| {
            let points = lines.iter().filter_map(|line| Some((line.step() as f64, line.number(name)?)));
            (*name, points.filter(|(_, y)| y.is_finite()).collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| !points.is_empty())
        .collect();
    let all = || series.iter().flat_map(|(_, points)| points.iter());
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let (low, high) =
            all().map(pick).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low.is_finite() && high > low {
            (low, high)
        } else if low.is_finite() {
            (low - 0.5, low + 0.5)
        } else {
            (0.0, 1.0)
        }
    };
    let ((x0, x1), (y0, y1)) = (bounds(|p| p.0), bounds(|p| p.1));
    let x = |v: f64| LEFT + (v - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - (v - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" \
         font-size=\"14\">{}</text>\n",
        escape(title)
    );
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let (vx, vy) = (x0 + part * (x1 - x0), y0 + part * (y1 - y0));
        let (px, py) = (x(vx), y(vy));
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {py:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text><text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{vx:.0}</text>",
            LEFT - 6.0,
            py + 4.0,
            short(vy),
            bottom + 18.0,
        );
    }
    for (index, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
            path.join(" "),
            WIDTH - RIGHT - 4.0,
            TOP + 14.0 * (index as f64 + 1.0),
            escape(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
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
