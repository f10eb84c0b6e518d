//! A writer of SVG: texts, lines, bars, scales, axes and legends.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Colours that are distinguishable with any colour vision, and dark enough on white.
pub const COLOURS: [&str; 10] = [
    "#1f6feb", "#d1242f", "#2da44e", "#8250df", "#bf8700", "#0a7b83", "#c0399f", "#57606a", "#953800",
    "#5e6b00",
];

/// The fill colour of notes and of labels of axes.
pub const GREY: &str = "fill=\"#555\"";

/// The height of a row of a legend.
const LEGEND_ROW: f64 = 18.0;

/// Escapes a text for an element or a quoted attribute, of SVG and of HTML.
pub fn escape(text: &str) -> Cow<'_, str> {
    html_escape::encode_safe(text)
}

/// A linear map from the numbers `low..high` to the coordinates `from..to`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The smallest number.
    pub low: f64,
    /// The largest number.
    pub high: f64,
    /// The coordinate of `low`.
    pub from: f64,
    /// The coordinate of `high`.
    pub to: f64,
}

impl Scale {
    /// Returns the scale over all finite `numbers`. A single number is centred; without numbers the scale is 0 to 1.
    pub fn over(numbers: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let finite = numbers.filter(|number| number.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), n| (l.min(n), h.max(n)));
        // Numbers that differ only by rounding count as one.
        let apart = high - low > 1e-9 * low.abs().max(high.abs());
        let (low, high) = match (low.is_finite(), apart) {
            (true, true) => (low, high),
            (true, false) => {
                let room = 0.5 * if low.abs() > 1e-9 { low.abs() } else { 1.0 };
                (low - room, low + room)
            }
            (false, _) => (0.0, 1.0),
        };
        Self { low, high, from, to }
    }

    /// Returns the coordinate of a number.
    pub fn at(&self, number: f64) -> f64 {
        self.from + (number - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `value`; 1 if `value` is not positive.
pub fn round_step(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= value)
        .unwrap_or(value)
}

/// Returns about `count` multiples of a round number times `base` that are in `low..=high`.
pub fn ticks(low: f64, high: f64, count: usize, base: f64) -> Vec<f64> {
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return vec![low];
    }
    let step = round_step(span / base / count.max(1) as f64 * 0.999) * base;
    // Include a tick that rounding has moved past the end.
    let first = (low / step - 1e-9).ceil();
    (0..=2 * count)
        .map(|at| (first + at as f64) * step)
        .take_while(|tick| *tick <= high + 1e-9 * span)
        // Rounding may give -0 or 0.30000000000000004.
        .map(|tick| if tick.abs() < step * 1e-9 { 0.0 } else { tick })
        .collect()
}

/// Formats the label of a tick: at most four significant digits, without trailing zeros, large numbers with k and M.
pub fn tick_label(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e9).contains(&size) {
        trimmed(&format!("{value:.1e}"))
    } else if size >= 1e6 {
        format!("{}M", trimmed(&format!("{:.2}", value / 1e6)))
    } else if size >= 1e4 {
        format!("{}k", trimmed(&format!("{:.1}", value / 1e3)))
    } else {
        trimmed(&format!("{value:.*}", (3 - size.log10().floor() as i32).clamp(0, 6) as usize))
    }
}

/// Removes zeros at the end of a fraction.
fn trimmed(text: &str) -> String {
    let (number, exponent) =
        text.split_once('e').map_or((text, None), |(number, exponent)| (number, Some(exponent)));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    exponent.map_or_else(|| number.to_owned(), |exponent| format!("{number}e{exponent}"))
}

/// The position of a text relative to its coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

/// The mark before a name in a legend.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// A piece of a line with these attributes.
    Line(String),
    /// A square of this colour.
    Square(&'static str),
}

/// An SVG image. Its methods append elements. `attributes` are written unescaped; texts are escaped.
#[derive(Debug)]
pub struct Svg(String);

impl Svg {
    /// Begins a file with a white background and a font size of 12 units.
    pub fn file(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    /// Begins an inline element of the CSS class `class`. Screen readers read `label`.
    pub fn element(width: f64, height: f64, class: &str, label: &str) -> Self {
        Self(format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        ))
    }

    /// Returns the complete SVG text.
    pub fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    fn tag(&mut self, name: &str, attributes: &str, geometry: std::fmt::Arguments<'_>) {
        let gap = if attributes.is_empty() { "" } else { " " };
        let _ = writeln!(self.0, "<{name}{gap}{attributes} {geometry}/>");
    }

    /// Writes a text on the baseline `y`.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, attributes: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let gap = if attributes.is_empty() { "" } else { " " };
        let text = escape(text);
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{gap}{attributes}>{text}</text>");
    }

    /// Writes a text rotated by 90 degrees, centred at a point.
    pub fn upward_text(&mut self, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.0,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\">{text}</text>"
        );
    }

    /// Draws a horizontal line.
    pub fn horizontal(&mut self, y: f64, (left, right): (f64, f64), attributes: &str) {
        self.tag("path", attributes, format_args!("d=\"M{left:.1} {y:.1}H{right:.1}\""));
    }

    /// Draws a filled rectangle, given its upper left corner, width and height.
    pub fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        self.tag("rect", &place, format_args!("fill=\"{colour}\""));
    }

    /// Draws a disc.
    pub fn disc(&mut self, (x, y): (f64, f64), radius: f64, attributes: &str) {
        self.tag("circle", attributes, format_args!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\""));
    }

    /// Draws a line through points. Draws nothing without points.
    pub fn polyline(&mut self, points: &[(f64, f64)], attributes: &str) {
        self.shape("polyline", points, attributes);
    }

    /// Draws a filled polygon. Draws nothing without points.
    pub fn polygon(&mut self, points: &[(f64, f64)], attributes: &str) {
        self.shape("polygon", points, attributes);
    }

    fn shape(&mut self, name: &str, points: &[(f64, f64)], attributes: &str) {
        if !points.is_empty() {
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            self.tag(name, attributes, format_args!("points=\"{}\"", points.join(" ")));
        }
    }

    /// Draws the y axis: a label left of the panel and a grid line, with the attributes `grid`, for each tick.
    pub fn y_axis(&mut self, y: &Scale, (left, right): (f64, f64), grid: &str, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let at = y.at(*value);
            self.horizontal(at, (left, right), grid);
            self.text((left - 6.0, at + 4.0), Anchor::End, "", label);
        }
    }

    /// Draws the labels of the x axis on the baseline `y`.
    pub fn x_axis(&mut self, x: &Scale, y: f64, ticks: &[(f64, String)]) {
        let right = x.from.max(x.to);
        for (value, label) in ticks {
            let at = x.at(*value);
            // A label at the right edge must not cross it.
            let anchor = if at > right - 16.0 { Anchor::End } else { Anchor::Middle };
            self.text((at, y), anchor, "", label);
        }
    }

    /// Draws a legend, wrapped into rows, the first on the baseline `top`. Returns the baseline of the last row.
    pub fn legend(&mut self, (left, right): (f64, f64), top: f64, entries: &[(&str, Mark)]) -> f64 {
        let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
        let places = legend_places(&names, (left, right), top);
        for ((name, mark), (x, y)) in entries.iter().zip(&places) {
            match mark {
                Mark::Line(attributes) => self.horizontal(y - 4.0, (*x, x + 18.0), attributes),
                Mark::Square(colour) => self.bar((x + 6.0, y - 10.0), (12.0, 12.0), colour),
            }
            self.text((x + 24.0, *y), Anchor::Start, "", name);
        }
        places.last().map_or(top, |place| place.1)
    }
}

/// Returns the width of a legend entry, including the gap after it. A letter is about 6.4 units wide.
pub fn legend_width(name: &str) -> f64 {
    24.0 + 6.4 * name.chars().count() as f64 + 18.0
}

/// Returns the height of a legend of these names.
pub fn legend_height(names: &[&str], sides: (f64, f64)) -> f64 {
    legend_places(names, sides, 0.0).last().map_or(0.0, |place| place.1 + LEGEND_ROW)
}

/// Returns the left ends and baselines of the legend entries.
fn legend_places(names: &[&str], (left, right): (f64, f64), top: f64) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (left, top);
    let place = |name: &&str| {
        let width = legend_width(name);
        if x > left && x + width > right {
            (x, y) = (left, y + LEGEND_ROW);
        }
        let place = (x, y);
        x += width;
        place
    };
    names.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let labels =
            |low, high| ticks(low, high, 5, 1.0).into_iter().map(tick_label).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(0.0, 1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(labels(-0.31, 0.3), "-0.2 0 0.2");
        assert_eq!(labels(0.0, 60_000.0), "0 20k 40k 60k");
        assert_eq!(labels(1.5e-5, 3.5e-5), "1.5e-5 2e-5 2.5e-5 3e-5 3.5e-5");
        assert_eq!(labels(7.0, 7.0), "7");
        assert_eq!(labels(0.0, f64::INFINITY), "0");
        for (value, step) in [(0.0, 1.0), (3.0, 5.0), (0.11, 0.2), (100.0, 100.0), (160.0, 200.0)] {
            assert!((round_step(value) - step).abs() < 1e-9 * step, "{value}: {}", round_step(value));
        }
    }

    #[test]
    fn scales_hold_their_numbers() {
        let over = |numbers: &[f64]| {
            let scale = Scale::over(numbers.iter().copied(), 0.0, 10.0);
            (scale.low, scale.high)
        };
        assert_eq!(over(&[3.0, f64::NAN, 1.0, f64::INFINITY]), (1.0, 3.0));
        assert_eq!([over(&[2.0]), over(&[0.0, 0.0]), over(&[])], [(1.0, 3.0), (-0.5, 0.5), (0.0, 1.0)]);
        assert_eq!(Scale { low: 0.0, high: 4.0, from: 10.0, to: 0.0 }.at(1.0), 7.5);
    }

    #[test]
    fn legends_break_into_rows() {
        let mut svg = Svg::file(200.0, 100.0);
        let entries = ["one <1>", "two", "three"].map(|name| (name, Mark::Line("stroke=\"red\"".to_owned())));
        assert_eq!(svg.legend((0.0, 170.0), 14.0, &entries), 32.0);
        let names = entries.each_ref().map(|(name, _)| *name);
        assert_eq!(legend_height(&names, (0.0, 170.0)), 36.0);
        let text = svg.finish();
        assert!(text.contains("<text x=\"24.0\" y=\"32.0\">three</text>") && text.contains("one &lt;1&gt;"));
        assert_eq!(text.matches("<path stroke=\"red\" d=\"M").count(), 3);
    }
}
