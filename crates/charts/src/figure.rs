//! Figures: panels in rows with a title and a common legend, as a file.

use super::legend::{Entry, Legend, Mark};
use super::palette::Styles;
use super::panel::{Content, Panel, Series};
use super::plot::Plot;
use super::scale::drawable;
use super::svg::{Anchor, Svg};
use super::text::wrapped;

/// The size of a panel by default.
const SIZE: (f64, f64) = (720.0, 320.0);
/// The space left and right of texts.
const MARGIN: f64 = 14.0;
/// The font size and the height of a line of the title, and of a note.
const HEAD: (f64, f64) = (15.0, 20.0);
const NOTE: (f64, f64) = (12.0, 17.0);
/// The space below the titles, and below the legend.
const GAP: f64 = 8.0;

/// Panels with a title and a legend.
///
/// Names have the same style in all panels. Panels without a number except 0 are left out and named in a note. The panels
/// of a last row that is not full are wider.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    title: String,
    notes: Vec<String>,
    panels: Vec<Panel>,
    columns: usize,
    size: (f64, f64),
}

impl Figure {
    /// Creates a figure of panels below each other, with styles by name.
    pub fn new(title: impl Into<String>, panels: Vec<Panel>) -> Self {
        let (blank, mut panels): (Vec<Panel>, Vec<Panel>) = panels.into_iter().partition(Panel::is_blank);
        let styles =
            Styles::of(panels.iter().map(|panel| panel.names().into_iter().map(|(name, _)| name).collect()));
        for panel in &mut panels {
            match &mut panel.content {
                Content::Lines(series) | Content::Areas(series) => {
                    series.iter_mut().for_each(|series| series.style = styles.get(&series.name));
                }
                Content::Bars { parts, .. } => {
                    parts.iter_mut().for_each(|(name, style)| *style = styles.get(name));
                }
            }
        }
        let names: Vec<&str> =
            blank.iter().map(|panel| panel.title.as_str()).filter(|name| !name.is_empty()).collect();
        let notes = match (blank.is_empty(), names.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => vec!["no values".to_owned()],
            (false, names) => vec![format!("without values other than 0: {}", names.join(", "))],
        };
        Self { title: title.into(), notes, panels, columns: 1, size: SIZE }
    }

    /// Adds a line below the title.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.insert(0, text.into());
        self
    }

    /// Sets the number of panels in a row, and the size of a panel.
    pub fn grid(mut self, columns: usize, size: (f64, f64)) -> Self {
        (self.columns, self.size) = (columns, size);
        self
    }

    /// Returns the figure as an SVG file.
    pub fn svg(&self) -> String {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let (width, height) = (self.size.0 * columns as f64, self.size.1);
        let sides = (MARGIN, width - MARGIN);
        let title = wrapped(&self.title, HEAD.0, sides.1 - sides.0);
        let notes: Vec<String> =
            self.notes.iter().flat_map(|note| wrapped(note, NOTE.0, sides.1 - sides.0)).collect();
        let head = GAP + HEAD.1 * title.len() as f64 + NOTE.1 * notes.len() as f64 + GAP;
        let rows: Vec<&[Panel]> = self.panels.chunks(columns).collect();
        let below = head + height * rows.len() as f64;
        let legend = Legend::of(self.entries(), sides);
        let mut svg = Svg::file(width, below + legend.height + GAP, &self.title);
        for (number, line) in title.iter().enumerate() {
            svg.text((MARGIN, GAP + 14.0 + HEAD.1 * number as f64), Anchor::Start, "head", line);
        }
        for (number, line) in notes.iter().enumerate() {
            let baseline = GAP + 12.0 + HEAD.1 * title.len() as f64 + NOTE.1 * number as f64;
            svg.text((MARGIN, baseline), Anchor::Start, "soft", line);
        }
        for (row, panels) in rows.iter().enumerate() {
            let wide = width / panels.len() as f64;
            for (column, panel) in panels.iter().enumerate() {
                let origin = (wide * column as f64, head + height * row as f64);
                Plot::of(panel, origin, (wide, height), true).draw(&mut svg);
            }
        }
        legend.draw(&mut svg, below);
        svg.finish()
    }

    /// Returns the entries of the legend: each name once.
    fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for panel in &self.panels {
            for (name, style) in panel.names() {
                if !entries.iter().any(|entry| entry.name == name) {
                    entries.push(Entry { name: name.to_owned(), style, mark: self.mark(name) });
                }
            }
        }
        entries
    }

    /// Returns the mark of a name: a line with a dot if it has a single value in every panel.
    fn mark(&self, name: &str) -> Mark {
        let of_panel = |panel: &'_ Panel| match &panel.content {
            Content::Lines(lines) => lines.iter().filter(|line| line.name == name).map(values).max(),
            Content::Areas(_) | Content::Bars { .. } => None,
        };
        match self.panels.iter().filter_map(of_panel).max() {
            None => Mark::Square,
            Some(1) => Mark::DottedLine,
            Some(_) => Mark::Line,
        }
    }
}

/// Returns the number of points that can be drawn.
fn values(series: &Series) -> usize {
    series.points.iter().filter(|(x, y)| drawable(*x).is_some() && drawable(*y).is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::Axis;
    use crate::unit::Unit;

    fn panel(title: &str, names: &[&str], points: &[(f64, f64)]) -> Panel {
        let series = names.iter().map(|name| Series::new(*name, points.to_vec())).collect();
        Panel::lines(title, Axis::of("steps", Unit::Count), Axis::default(), series)
    }

    #[test]
    fn names_have_one_style_and_stand_in_the_legend_once() {
        let line = [(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 2.0)];
        let panels = vec![panel("a < b", &["loss", "x"], &line), panel("c", &["x"], &line)];
        let svg = Figure::new("all", panels).grid(2, (300.0, 200.0)).svg();
        assert_eq!(svg.matches(">x</text>").count(), 1);
        let style =
            svg.split("class=\"line ").skip(1).map(|rest| rest.split(['"', ' ']).next().unwrap_or_default());
        let styles: Vec<&str> = style.collect();
        assert_eq!((styles.len(), styles[0], styles[1]), (5, "s0", styles[2]));
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && svg.contains("width=\"600\""));
    }

    #[test]
    fn panels_of_zeros_are_named_and_the_last_row_is_full() {
        let line = [(0.0, 1.0), (1.0, 2.0)];
        let zero = panel("exposed & hidden", &["a"], &[(0.0, 0.0), (1.0, f64::NAN)]);
        let panels = vec![
            panel("1", &["a"], &line),
            zero.clone(),
            panel("2", &["a"], &line),
            panel("3", &["a"], &line),
        ];
        let figure = Figure::new("all", panels).note("on two cores").grid(2, (300.0, 200.0));
        let svg = figure.svg();
        assert!(
            svg.contains("without values other than 0: exposed &amp; hidden") && svg.contains("on two cores")
        );
        // The grid lines of the third panel reach across the picture.
        assert!(svg.contains("H286.0") && svg.contains("H586.0"));
        assert_eq!(svg.matches("H286.0").count() * 2, svg.matches("H586.0").count());
        for panels in [vec![], vec![zero]] {
            let svg = Figure::new("nothing", panels).svg();
            assert!(svg.contains("nothing") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn a_single_value_is_a_dot_also_in_the_legend() {
        let svg = Figure::new("one", vec![panel("", &["test_loss"], &[(5.0, 1.0)])]).svg();
        assert_eq!(svg.matches("<circle class=\"dot s1\"").count(), 2);
    }
}
