//! The table as a picture that every browser shows: bars of speed, of memory, and of the share of communication.

use std::fmt::Write as _;

use super::figures::{Figures, Row};

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

/// A part of a bar: its colour, and its number from the figures.
type Part = (&'static str, fn(&Figures) -> Option<f64>);

/// A panel of bars, a bar for each row.
struct Panel {
    title: &'static str,
    axis: &'static str,
    /// From the axis upwards, one on the other.
    parts: &'static [Part],
    /// The meanings of the colours, if there are several.
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

/// The picture.
pub(super) fn svg(title: &str, rows: &[Row]) -> String {
    let height = HEAD + PANEL * PANELS.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"26\" \
         font-size=\"16\" font-weight=\"bold\">Strategies</text>\n<text x=\"{LEFT}\" y=\"46\" fill=\"#555\">{}</text>\n",
        escape(title)
    );
    for (index, panel) in PANELS.iter().enumerate() {
        draw(&mut svg, panel, rows, HEAD + PANEL * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws a panel whose upper edge is at `y`.
fn draw(svg: &mut String, panel: &Panel, rows: &[Row], y: f64) {
    let (low, high) = (y + PANEL - BOTTOM, y + TOP);
    let values = |row: &Row| -> Option<Vec<f64>> {
        let figures = row.outcome.as_ref().ok()?;
        panel.parts.iter().map(|(_, value)| value(figures).filter(|value| value.is_finite())).collect()
    };
    let largest = rows.iter().filter_map(values).map(|parts| parts.iter().sum()).fold(0.0, f64::max);
    let step = round_step(largest / 4.0);
    let ticks = (largest / step).ceil().max(1.0);
    let scale = (low - high) / (step * ticks);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-size=\"14\">{}</text>\n<text transform=\"translate(16 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        y + 18.0,
        panel.title,
        f64::midpoint(low, high),
        panel.axis
    );
    for tick in 0..=ticks as u32 {
        let value = f64::from(tick) * step;
        let at = low - value * scale;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            if tick == 0 { "#555" } else { "#ddd" },
            LEFT - 6.0,
            at + 4.0,
            number(value, step)
        );
    }
    let mut x = WIDTH - RIGHT;
    for (colour, name) in panel.legend.iter().rev() {
        // About 6.2 units a letter at this size.
        x -= 6.2 * name.len() as f64 + 22.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            y + 8.0,
            x + 17.0,
            y + 18.0
        );
    }
    let slot = (WIDTH - LEFT - RIGHT) / rows.len().max(1) as f64;
    for (index, row) in rows.iter().enumerate() {
        let middle = LEFT + slot * (index as f64 + 0.5);
        let ranks = if row.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", row.ranks) };
        let _ = writeln!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"{middle:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\" fill=\"#777\" font-size=\"11\">{ranks}</text>",
            low + 16.0,
            escape(&row.name),
            low + 30.0
        );
        let label = |svg: &mut String, at: f64, text: &str, colour: &str| {
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{colour}\">{text}</text>",
                at - 5.0
            );
        };
        let Some(parts) = values(row) else {
            let text = if row.outcome.is_err() { "failed" } else { "unknown" };
            label(svg, low, text, RED);
            continue;
        };
        let wide = (0.6 * slot).min(72.0);
        let mut at = low;
        for ((colour, _), value) in panel.parts.iter().zip(&parts) {
            let tall = value * scale;
            at -= tall;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{at:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\" fill=\"{colour}\"/>",
                middle - 0.5 * wide
            );
        }
        let decimals = panel.decimals;
        let text: Vec<String> = parts.iter().map(|value| format!("{value:.decimals$}")).collect();
        label(svg, at, &text.join(" + "), "#333");
    }
}

/// The number of the form 1, 2 or 5 times a power of ten that is next to `value`, not below it.
fn round_step(value: f64) -> f64 {
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

/// A number on an axis whose ticks are `step` apart.
fn number(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(images_per_second: f64, peak_memory: Option<u64>, exposed: f64) -> Figures {
        Figures {
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

    #[test]
    fn ticks_are_round() {
        for (value, step) in [(0.0, 1.0), (3.0, 5.0), (0.11, 0.2), (100.0, 100.0), (160.0, 200.0)] {
            assert!((round_step(value) - step).abs() < 1e-9 * step, "{value}: {}", round_step(value));
        }
        assert_eq!([number(0.4, 0.2), number(400.0, 200.0)], ["0.4", "400"]);
    }
}
