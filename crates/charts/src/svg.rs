//! A writer of SVG: texts, lines, rectangles and discs with CSS classes.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::palette::sheet;

/// Escapes a text for an element or a quoted attribute, of SVG and of HTML.
pub fn escape(text: &str) -> Cow<'_, str> {
    html_escape::encode_safe(text)
}

/// The point of a text at its coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The beginning.
    Start,
    /// The middle.
    Middle,
    /// The end.
    End,
}

/// An SVG picture under construction. Elements have CSS classes, no colours.
#[derive(Debug)]
pub struct Svg(String);

impl Svg {
    /// Begins a file with a style sheet and a background, for light and dark colour schemes.
    pub fn file(width: f64, height: f64, title: &str) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>{}</style>\n\
             <rect class=\"back\" width=\"{width:.0}\" height=\"{height:.0}\"/>\n",
            escape(title),
            sheet()
        ))
    }

    /// Begins an inline element of the CSS class `class`. Screen readers read `label`.
    pub fn element(width: f64, height: f64, class: &str, label: &str) -> Self {
        Self(format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        ))
    }

    /// Returns the complete SVG text.
    pub fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    /// Writes a text on the baseline `y`.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(self.0, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{}</text>", escape(text));
    }

    /// Draws a horizontal line.
    pub fn horizontal(&mut self, y: f64, (left, right): (f64, f64), class: &str) {
        self.path(class, &format!("M{left:.1} {y:.1}H{right:.1}"), None);
    }

    /// Draws a path with these commands; the title, if any, is shown when a pointer rests on it.
    pub fn path(&mut self, class: &str, commands: &str, title: Option<&str>) {
        self.shape("path", class, &format!("d=\"{commands}\""), title);
    }

    /// Draws a rectangle, given its upper left corner, width and height.
    pub fn rectangle(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        title: Option<&str>,
    ) {
        let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        self.shape("rect", class, &place, title);
    }

    /// Draws a disc.
    pub fn disc(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        self.shape("circle", class, &format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\""), None);
    }

    fn shape(&mut self, name: &str, class: &str, geometry: &str, title: Option<&str>) {
        let _ = match title {
            None => writeln!(self.0, "<{name} class=\"{class}\" {geometry}/>"),
            Some(title) => {
                let title = escape(title);
                writeln!(self.0, "<{name} class=\"{class}\" {geometry}><title>{title}</title></{name}>")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_titles_belong_to_their_shapes() {
        let mut svg = Svg::file(10.0, 20.0, "a < b");
        svg.text((1.0, 2.0), Anchor::End, "soft", "x & y");
        svg.path("line s0", "M0 0L1 1", Some("1 < 2"));
        svg.disc("dot s1", (1.0, 1.0), 2.5);
        let text = svg.finish();
        for part in [
            "<title>a &lt; b</title>",
            "<text class=\"soft\" x=\"1.0\" y=\"2.0\" text-anchor=\"end\">x &amp; y</text>",
            "<path class=\"line s0\" d=\"M0 0L1 1\"><title>1 &lt; 2</title></path>",
            "<circle class=\"dot s1\" cx=\"1.0\" cy=\"1.0\" r=\"2.5\"/>",
            "prefers-color-scheme:dark",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
