//! The table as an SVG: bars of speed, memory, and the share of communication.

use phalanx_charts::{Axis, Bar, Content, Figure, Panel, Style, Unit};
use phalanx_run::format;

use super::figures::{Row, RunMetrics};

/// The size of a panel.
const SIZE: (f64, f64) = (960.0, 236.0);

/// A part of a bar: its name in the legend, and its value.
type Part = (&'static str, fn(&RunMetrics) -> Option<f64>);

/// A panel of bars, a bar for each row.
struct BarPanel {
    title: &'static str,
    axis: (&'static str, Unit),
    /// The parts of a bar, from the axis upwards.
    parts: &'static [Part],
    /// Returns the text of a value above its bar.
    text: fn(f64) -> String,
}

const PANELS: &[BarPanel] = &[
    BarPanel {
        title: "Speed",
        axis: ("", Unit::SamplesPerSecond),
        parts: &[("", |figures| Some(figures.samples_per_second))],
        text: |speed| format!("{speed:.0}"),
    },
    BarPanel {
        title: "Peak memory of a rank's process",
        axis: ("", Unit::Bytes),
        parts: &[("", |figures| Some(figures.peak_memory? as f64))],
        text: |bytes| format::bytes(bytes as u64),
    },
    BarPanel {
        title: "Communication",
        axis: ("of a step", Unit::Percent),
        parts: &[
            ("exposed communication", |figures| Some(100.0 * figures.share(figures.exposed))),
            ("hidden communication", |figures| Some(100.0 * figures.share(figures.hidden))),
        ],
        text: |share| format!("{share:.1}"),
    },
];

/// Draws the chart.
pub(super) fn svg(title: &str, rows: &[Row]) -> String {
    let panels = PANELS.iter().map(|panel| panel.of(rows)).collect();
    Figure::new("Strategies", panels).note(title).grid(1, SIZE).svg()
}

impl BarPanel {
    /// Returns the panel of these rows.
    fn of(&self, rows: &[Row]) -> Panel {
        let parts = self.parts.iter().map(|(name, _)| ((*name).to_owned(), Style::default())).collect();
        let content = Content::Bars { parts, bars: rows.iter().map(|row| self.bar(row)).collect() };
        let (label, unit) = self.axis;
        Panel { content, ..Panel::bars(self.title, Axis::default(), Axis::of(label, unit), Vec::new()) }
    }

    /// Returns the bar of a row with its name and its numbers.
    fn bar(&self, row: &Row) -> Bar {
        let note = if row.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", row.ranks) };
        let values = self.values(row);
        let label = match &values {
            Some(values) => values.iter().map(|value| (self.text)(*value)).collect::<Vec<_>>().join(" + "),
            None if row.outcome.is_err() => "failed".to_owned(),
            None => "unknown".to_owned(),
        };
        Bar { name: row.name.clone(), note, values, label }
    }

    /// Returns the values of a row, if all are known.
    fn values(&self, row: &Row) -> Option<Vec<f64>> {
        let figures = row.outcome.as_ref().ok()?;
        self.parts.iter().map(|(_, value)| value(figures).filter(|value| value.is_finite())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(samples_per_second: f64, peak_memory: Option<u64>, exposed: f64) -> RunMetrics {
        RunMetrics {
            steps: 3,
            seconds_per_epoch: 1.0,
            samples_per_second,
            peak_memory,
            sent_per_step: 0.0,
            step: 1.0,
            exposed,
            hidden: 0.25,
            loss: None,
            test_loss: None,
            test_accuracy: None,
        }
    }

    #[test]
    fn every_row_has_its_bars_or_says_why_not() {
        let row = |name: &str, outcome| Row { name: name.to_owned(), ranks: 2, outcome };
        let rows = [
            row("a<b", Ok(figures(100.0, Some(1 << 30), 0.5))),
            row("slow", Ok(figures(1.0, None, 0.0))),
            row("broken", Err("no".to_owned())),
        ];
        let picture = svg("x & y", &rows);
        let styled = |style: &str| picture.matches(&format!("<rect class=\"area {style}\"")).count();
        // Two speeds and one peak. Two bars, and the legend, of each kind of communication.
        assert_eq!((styled("s0"), styled("s1"), styled("s6")), (3, 3, 3));
        assert_eq!((picture.matches(">failed<").count(), picture.matches(">unknown<").count()), (3, 1));
        assert!(
            picture.contains("a&lt;b")
                && picture.contains(">1.00 GiB<")
                && picture.contains("x &amp; y")
                && picture.contains("50.0 + 25.0")
        );
        for text in [&picture, &svg("", &[]), &svg("", &rows[2..])] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
