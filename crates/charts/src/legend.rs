//! Legends that fit: names in rows, wrapped where they are wider than the picture.

use super::palette::Style;
use super::svg::{Anchor, Svg};
use super::text::{width, wrapped};

/// The font size of names.
const SIZE: f64 = 12.0;
/// The height of a line of a name.
const LINE: f64 = 17.0;
/// The width of a mark with the gap to its name, and the gap after a name.
const MARK: f64 = 26.0;
const GAP: f64 = 16.0;

/// The form of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A line.
    Line,
    /// A line with a dot.
    DottedLine,
    /// A filled square.
    Square,
}

/// An entry of a legend.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) style: Style,
    pub(crate) mark: Mark,
}

/// An entry with its place: the left end and the first baseline, and the lines of its name.
#[derive(Debug, Clone, PartialEq)]
struct Placed {
    at: (f64, f64),
    lines: Vec<String>,
}

/// A legend with the places of its entries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Legend {
    entries: Vec<(Entry, Placed)>,
    /// The height.
    pub(crate) height: f64,
}

impl Legend {
    /// Places entries in rows between two sides.
    pub(crate) fn of(entries: Vec<Entry>, (left, right): (f64, f64)) -> Self {
        let (mut x, mut y, mut row) = (left, LINE, 0.0_f64);
        let mut placed = Vec::new();
        for entry in entries {
            let lines = wrapped(&entry.name, SIZE, right - left - MARK);
            let wide = MARK + lines.iter().map(|line| width(line, SIZE)).fold(0.0, f64::max);
            if x > left && x + wide > right {
                (x, y, row) = (left, y + row, 0.0);
            }
            row = row.max(LINE * lines.len() as f64);
            placed.push((entry, Placed { at: (x, y), lines }));
            x += wide + GAP;
        }
        let height = if placed.is_empty() { 0.0 } else { y + row - LINE + 8.0 };
        Self { entries: placed, height }
    }

    /// Draws the legend with its upper edge at `top`.
    pub(crate) fn draw(&self, svg: &mut Svg, top: f64) {
        for (entry, Placed { at: (x, y), lines }) in &self.entries {
            let (y, classes) = (y + top, entry.style.classes());
            match entry.mark {
                Mark::Square => {
                    svg.rectangle(&format!("area {classes}"), (x + 7.0, y - 10.0), (12.0, 12.0), None);
                }
                Mark::Line | Mark::DottedLine => {
                    svg.horizontal(y - 4.0, (*x, x + 20.0), &format!("line {classes}"));
                }
            }
            if entry.mark == Mark::DottedLine {
                svg.disc(&format!("dot {classes}"), (x + 10.0, y - 4.0), 3.0);
            }
            for (number, line) in lines.iter().enumerate() {
                svg.text((x + MARK, y + LINE * number as f64), Anchor::Start, "", line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(names: &[String]) -> Vec<Entry> {
        let entry = |name: &String| Entry { name: name.clone(), style: Style::default(), mark: Mark::Line };
        names.iter().map(entry).collect()
    }

    #[test]
    fn rows_break_where_names_do_not_fit() {
        let names = ["one", "two", "three"].map(str::to_owned);
        let legend = Legend::of(entries(&names), (0.0, 130.0));
        let places: Vec<_> = legend.entries.iter().map(|(_, placed)| placed.at.1).collect();
        assert_eq!((places, legend.height), (vec![17.0, 17.0, 34.0], 42.0));
        assert_eq!(Legend::of(Vec::new(), (0.0, 100.0)).height, 0.0);
    }

    proptest! {
        #[test]
        fn names_neither_overlap_nor_leave_the_picture(
            names in prop::collection::vec("[a-zA-Z_ 0-9]{1,40}", 1..20), room in 60.0..700.0,
        ) {
            let legend = Legend::of(entries(&names), (10.0, 10.0 + room));
            let boxes: Vec<[f64; 4]> = legend.entries.iter().map(|(_, Placed { at: (x, y), lines })| {
                let wide = MARK + lines.iter().map(|line| width(line, SIZE)).fold(0.0, f64::max);
                [*x, x + wide, y - LINE, y - LINE + LINE * lines.len() as f64]
            }).collect();
            for (at, [left, right, top, bottom]) in boxes.iter().enumerate() {
                prop_assert!(*left >= 10.0 && *right <= 10.0 + room + 1e-9, "{boxes:?}");
                prop_assert!(*top >= 0.0 && *bottom <= legend.height, "{boxes:?}");
                let overlaps = |[l, r, t, b]: &[f64; 4]| l < right && left < r && t < bottom && top < b;
                prop_assert!(!boxes[..at].iter().any(overlaps), "{boxes:?}");
            }
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            for (entry, placed) in &legend.entries {
                prop_assert_eq!(letters(&placed.lines.concat()), letters(&entry.name));
            }
        }
    }
}
