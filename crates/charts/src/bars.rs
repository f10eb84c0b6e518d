//! Bars with their names below and texts above.

use super::axes::SIZE;
use super::palette::Style;
use super::panel::Bar;
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::text::{width, wrapped};

/// The height of a line of a name or of a text above a bar.
pub(crate) const LINE: f64 = 14.0;
/// The share of its room that a bar takes, and its largest width.
const SHARE: f64 = 0.7;
const WIDEST: f64 = 72.0;
/// The gap between names.
const GAP: f64 = 6.0;

/// The texts of bars, wrapped to the room of each bar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BarTexts {
    /// The room of a bar.
    pub(crate) room: f64,
    /// Names and notes below each bar, and texts above it.
    below: Vec<Vec<String>>,
    above: Vec<Vec<String>>,
}

impl BarTexts {
    /// Wraps the texts of bars to `across`, the width of all of them. Of names that are numbers only those remain for which
    /// there is room.
    pub(crate) fn of(bars: &[Bar], across: f64) -> Self {
        let room = across / bars.len().max(1) as f64;
        let widest = bars.iter().map(|bar| width(&bar.name, SIZE)).fold(0.0, f64::max);
        let numbers = bars.iter().all(|bar| bar.name.parse::<f64>().is_ok());
        let every = if numbers { ((widest + GAP) / room).ceil().max(1.0) as usize } else { 1 };
        let names = |(at, bar): (usize, &Bar)| match (numbers, at % every) {
            (true, 0) => vec![bar.name.clone()],
            (true, _) => Vec::new(),
            (false, _) => {
                let mut lines = wrapped(&bar.name, SIZE, room - GAP);
                if !bar.note.is_empty() {
                    lines.extend(wrapped(&bar.note, SIZE, room - GAP));
                }
                lines
            }
        };
        let texts = |bar: &Bar| match bar.label.is_empty() {
            true => Vec::new(),
            false => wrapped(&bar.label, SIZE, room - GAP),
        };
        Self {
            room,
            below: bars.iter().enumerate().map(names).collect(),
            above: bars.iter().map(texts).collect(),
        }
    }

    /// Returns the width of all bars.
    pub(crate) fn across(&self) -> f64 {
        self.room * self.below.len().max(1) as f64
    }

    /// Returns the heights of the texts below and above.
    pub(crate) fn heights(&self) -> (f64, f64) {
        let most = |texts: &[Vec<String>]| LINE * texts.iter().map(Vec::len).max().unwrap_or_default() as f64;
        (most(&self.below), most(&self.above))
    }

    /// Draws the bars from `left` on, on the scale `y`.
    pub(crate) fn draw(&self, svg: &mut Svg, bars: &[Bar], parts: &[(String, Style)], left: f64, y: &Scale) {
        let wide = (SHARE * self.room).min(WIDEST);
        for (at, bar) in bars.iter().enumerate() {
            let middle = left + self.room * (at as f64 + 0.5);
            for (line, text) in self.below[at].iter().enumerate() {
                svg.text((middle, y.from + 16.0 + LINE * line as f64), Anchor::Middle, "soft", text);
            }
            let mut sum = 0.0;
            for ((name, style), value) in parts.iter().zip(bar.values.iter().flatten()) {
                let below = y.place(sum).unwrap_or(y.from);
                sum += value;
                let above = y.place(sum).unwrap_or(below);
                let title = title(bar, name, *value);
                let (corner, size) = ((middle - 0.5 * wide, above.min(below)), (wide, (below - above).abs()));
                svg.rectangle(&format!("area {}", style.classes()), corner, size, Some(&title));
            }
            let class = if bar.values.is_some() { "" } else { "bad" };
            let foot = y.place(sum).unwrap_or(y.from) - 5.0;
            let lines = &self.above[at];
            for (line, text) in lines.iter().enumerate() {
                let up = LINE * (lines.len() - 1 - line) as f64;
                svg.text((middle, foot - up), Anchor::Middle, class, text);
            }
        }
    }
}

/// Returns the text of a part for pointers and screen readers.
fn title(bar: &Bar, part: &str, value: f64) -> String {
    let name = if part.is_empty() { bar.name.clone() } else { format!("{}, {part}", bar.name) };
    format!("{name}: {}", super::ticks::labels(&[value]).concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_below_their_bars() {
        let bar = |name: &str| Bar { name: name.to_owned(), values: Some(vec![1.0]), ..Bar::default() };
        let counts: Vec<Bar> = (0..100).map(|count| bar(&count.to_string())).collect();
        let texts = BarTexts::of(&counts, 400.0);
        let shown = texts.below.iter().filter(|lines| !lines.is_empty()).count();
        assert_eq!((shown, texts.heights()), (17, (LINE, 0.0)));
        let words = [bar("fsdp with a long name"), Bar { note: "2 ranks".to_owned(), ..bar("ddp") }];
        let texts = BarTexts::of(&words, 140.0);
        assert!(texts.below.iter().flatten().all(|line| width(line, SIZE) <= 70.0), "{texts:?}");
        assert_eq!(texts.below[1], ["ddp", "2 ranks"]);
    }
}
