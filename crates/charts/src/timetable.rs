//! Timetables: who does what at which time, a row for each.

use super::palette::Style;
use super::svg::{Anchor, Svg};
use super::text::width;

const MARGIN: f64 = 14.0;
const TITLE: (f64, f64) = (15.0, 24.0);
const ROW: f64 = 28.0;
const GAP: f64 = 4.0;
const FONT: f64 = 12.0;
/// The width of the times, as far as boxes are not narrower than this.
const TIMES: (f64, f64) = (900.0, 16.0);

/// Something that is done from a time to another.
#[derive(Debug, Clone, PartialEq)]
pub struct TimetableBox {
    /// The first time.
    pub start: f64,
    /// The last time.
    pub end: f64,
    /// The style of its kind.
    pub style: Style,
    /// A short text in the box.
    pub label: String,
    /// A text that is shown when a pointer rests on the box.
    pub title: String,
}

/// A row of a timetable.
#[derive(Debug, Clone, PartialEq)]
pub struct TimetableRow {
    /// The name of the row.
    pub label: String,
    /// Its boxes, in order.
    pub boxes: Vec<TimetableBox>,
}

/// A timetable.
#[derive(Debug, Clone, PartialEq)]
pub struct Timetable {
    /// The title.
    pub title: String,
    /// A line below the title; empty = none.
    pub note: String,
    /// The rows, from the top.
    pub rows: Vec<TimetableRow>,
    /// The kinds of boxes: name and style.
    pub kinds: Vec<(String, Style)>,
}

impl Timetable {
    /// Returns the timetable as an SVG file.
    pub fn svg(&self) -> String {
        let boxes = || self.rows.iter().flat_map(|row| &row.boxes);
        let end = boxes().map(|of| of.end).fold(1e-9, f64::max);
        let shortest = boxes().map(|of| of.end - of.start).filter(|length| *length > 0.0).fold(end, f64::min);
        let scale = f64::max(TIMES.0 / end, TIMES.1 / shortest);
        let labels = self.rows.iter().map(|row| width(&row.label, FONT)).fold(0.0, f64::max);
        let left = MARGIN + labels + 10.0;
        let top = MARGIN + TITLE.1 + if self.note.is_empty() { 0.0 } else { 20.0 };
        let bottom = top + ROW * self.rows.len() as f64;
        let mut svg = Svg::file(left + end * scale + MARGIN, bottom + 34.0, &self.title);
        svg.text((MARGIN, MARGIN + TITLE.0), Anchor::Start, "title", &self.title);
        if !self.note.is_empty() {
            svg.text((MARGIN, MARGIN + TITLE.1 + 12.0), Anchor::Start, "soft", &self.note);
        }
        for (at, row) in self.rows.iter().enumerate() {
            let y = top + ROW * at as f64;
            svg.text((left - 10.0, y + ROW / 2.0 + FONT / 3.0), Anchor::End, "", &row.label);
            for of in &row.boxes {
                let (x, length) = (left + of.start * scale, (of.end - of.start) * scale);
                let class = format!("area {}", of.style.classes());
                svg.rectangle(&class, (x + 0.5, y + GAP / 2.0), (length - 1.0, ROW - GAP), Some(&of.title));
                if width(&of.label, FONT) < length - 2.0 {
                    let middle = (x + length / 2.0, y + ROW / 2.0 + FONT / 3.0);
                    svg.text(middle, Anchor::Middle, "back", &of.label);
                }
            }
        }
        let mut x = left;
        for (name, style) in &self.kinds {
            svg.rectangle(&format!("area {}", style.classes()), (x, bottom + 10.0), (14.0, 14.0), None);
            svg.text((x + 20.0, bottom + 21.0), Anchor::Start, "", name);
            x += 20.0 + width(name, FONT) + 24.0;
        }
        svg.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_lie_at_their_times() {
        let of = |start: f64, end: f64, label: &str| TimetableBox {
            start,
            end,
            style: Style::of(0),
            label: label.to_owned(),
            title: format!("{label} from {start}"),
        };
        let row =
            TimetableRow { label: "rank 0".to_owned(), boxes: vec![of(0.0, 1.0, "0"), of(2.0, 3.0, "1")] };
        let table = Timetable {
            title: "a < b".to_owned(),
            note: String::new(),
            rows: vec![row],
            kinds: vec![("forward".to_owned(), Style::of(0))],
        };
        let svg = table.svg();
        assert!(svg.contains("<title>1 from 2</title>") && svg.contains(">rank 0</text>"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">forward</text>"), "{svg}");
        assert!(svg.contains("width=\"299.0\""), "900 for three seconds: {svg}");
    }
}
