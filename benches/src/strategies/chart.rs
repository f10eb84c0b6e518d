//! The table as an SVG: bars of speed, memory, and the share of communication.

use phalanx_run::svg::{Anchor, GREY, Mark, Scale, Svg, legend_width, round_step, tick_label};

use super::figures::{Row, RunMetrics};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
/// Above the first panel: the title, which may take two lines.
const HEAD: f64 = 64.0;
/// A panel: its title, its bars, and the names below them.
const PANEL: f64 = 236.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 44.0;

const BLUE: &str = "#1f6feb";
const VIOLET: &str = "#8250df";
const RED: &str = "#d1242f";
const PALE: &str = "#f0b3b8";

/// A part of a bar: its colour and its value.
type Part = (&'static str, fn(&RunMetrics) -> Option<f64>);

/// A panel of bars, a bar for each row.
struct Panel {
    title: &'static str,
    axis: &'static str,
    /// The parts of a bar, from the axis upwards.
    parts: &'static [Part],
    /// The legend, if there are several colours.
    legend: &'static [(&'static str, &'static str)],
    decimals: usize,
}

const PANELS: &[Panel] = &[
    Panel {
        title: "Speed",
        axis: "images/s",
        parts: &[(BLUE, |figures| Some(figures.images_per_second))],
        legend: &[],
        decimals: 0,
    },
    Panel {
        title: "Peak memory of a rank's process",
        axis: "MiB",
        parts: &[(VIOLET, |figures| Some(figures.peak_memory? as f64 / f64::from(1 << 20)))],
        legend: &[],
        decimals: 0,
    },
    Panel {
        title: "Communication",
        axis: "% of a step",
        parts: &[
            (RED, |figures| Some(100.0 * figures.share(figures.exposed))),
            (PALE, |figures| Some(100.0 * figures.share(figures.hidden))),
        ],
        legend: &[(RED, "exposed: nothing else is done"), (PALE, "hidden behind computing")],
        decimals: 1,
    },
];

/// Draws the chart.
pub(super) fn svg(title: &str, rows: &[Row]) -> String {
    let mut svg = Svg::file(WIDTH, HEAD + PANEL * PANELS.len() as f64);
    svg.text((LEFT, 26.0), Anchor::Start, "font-size=\"16\" font-weight=\"bold\"", "Strategies");
    svg.text((LEFT, 46.0), Anchor::Start, GREY, title);
    for (index, panel) in PANELS.iter().enumerate() {
        panel.draw(&mut svg, rows, HEAD + PANEL * index as f64);
    }
    svg.finish()
}

impl Panel {
    /// Returns the values of a row, if all are known.
    fn values(&self, row: &Row) -> Option<Vec<f64>> {
        let figures = row.outcome.as_ref().ok()?;
        self.parts.iter().map(|(_, value)| value(figures).filter(|value| value.is_finite())).collect()
    }

    /// Draws the panel with its upper edge at `top`.
    fn draw(&self, svg: &mut Svg, rows: &[Row], top: f64) {
        let (base, sides) = (top + PANEL - BOTTOM, (LEFT, WIDTH - RIGHT));
        let sums = rows.iter().filter_map(|row| self.values(row)).map(|parts| parts.iter().sum());
        let largest = sums.fold(0.0, f64::max);
        let step = round_step(largest / 4.0);
        let count = (largest / step).ceil().max(1.0);
        let y = Scale { low: 0.0, high: step * count, from: base, to: top + TOP };
        svg.text((LEFT, top + 18.0), Anchor::Start, "font-size=\"14\"", self.title);
        svg.upward_text((16.0, f64::midpoint(base, top + TOP)), self.axis);
        let ticks = (0..=count as u32).map(|tick| f64::from(tick) * step).map(|at| (at, tick_label(at)));
        svg.y_axis(&y, sides, "stroke=\"#ddd\"", &ticks.collect::<Vec<_>>());
        svg.horizontal(base, sides, "stroke=\"#555\"");
        let entries: Vec<_> =
            self.legend.iter().map(|(colour, name)| (*name, Mark::Square(colour))).collect();
        let width: f64 = entries.iter().map(|(name, _)| legend_width(name)).sum();
        svg.legend((sides.1 - width, WIDTH), top + 18.0, &entries);
        let slot = (WIDTH - LEFT - RIGHT) / rows.len().max(1) as f64;
        for (index, row) in rows.iter().enumerate() {
            self.draw_row(svg, row, &y, (LEFT + slot * (index as f64 + 0.5), (0.6 * slot).min(72.0)));
        }
    }

    /// Draws the bar of a row with its name and its numbers.
    fn draw_row(&self, svg: &mut Svg, row: &Row, y: &Scale, (middle, width): (f64, f64)) {
        let ranks = if row.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", row.ranks) };
        svg.text((middle, y.from + 16.0), Anchor::Middle, "", &row.name);
        svg.text((middle, y.from + 30.0), Anchor::Middle, "fill=\"#777\" font-size=\"11\"", &ranks);
        let Some(parts) = self.values(row) else {
            let text = if row.outcome.is_err() { "failed" } else { "unknown" };
            svg.text((middle, y.from - 5.0), Anchor::Middle, &format!("fill=\"{RED}\""), text);
            return;
        };
        let mut sum = 0.0;
        for ((colour, _), value) in self.parts.iter().zip(&parts) {
            let below = y.at(sum);
            sum += value;
            svg.bar((middle - 0.5 * width, y.at(sum)), (width, below - y.at(sum)), colour);
        }
        let decimals = self.decimals;
        let text: Vec<String> = parts.iter().map(|value| format!("{value:.decimals$}")).collect();
        svg.text((middle, y.at(sum) - 5.0), Anchor::Middle, "fill=\"#333\"", &text.join(" + "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(images_per_second: f64, peak_memory: Option<u64>, exposed: f64) -> RunMetrics {
        RunMetrics {
            steps: 3,
            seconds_per_epoch: 1.0,
            images_per_second,
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
        let coloured = |colour: &str| picture.matches(&format!("fill=\"{colour}\"/>")).count();
        assert_eq!((coloured(BLUE), coloured(VIOLET)), (2, 1));
        // Two bars and the legend.
        assert_eq!((coloured(RED), coloured(PALE)), (3, 3));
        assert_eq!((picture.matches(">failed<").count(), picture.matches(">unknown<").count()), (3, 1));
        assert!(
            picture.contains("a&lt;b") && picture.contains("x &amp; y") && picture.contains("50.0 + 25.0")
        );
        for text in [&picture, &svg("", &[]), &svg("", &rows[2..])] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
