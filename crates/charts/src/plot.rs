//! The plot of a panel: places its axes, and draws them with the content.

use super::axes::{Ruler, SIZE};
use super::bars::{BarTexts, LINE};
use super::lines::{draw_areas, draw_lines};
use super::panel::{Content, Panel};
use super::svg::{Anchor, Svg};
use super::text::wrapped;

/// The size of a plot in a page.
pub const WIDTH: f64 = 640.0;
/// See [`WIDTH`].
pub const HEIGHT: f64 = 260.0;

/// The space right of the axes, and left of the labels of ticks.
const RIGHT: f64 = 14.0;
const LEFT: f64 = 14.0;
/// The space above the axes, without and with a label of the y axis.
const TOP: f64 = 10.0;
const LABELLED_TOP: f64 = 24.0;
/// The height of the labels of ticks below the axes, and of the label of the x axis.
const TICKS: f64 = 22.0;
const LABEL: f64 = 14.0;
/// The height of a line of the title.
const TITLE: f64 = 17.0;

/// A panel with the places of its axes.
#[derive(Debug)]
pub(crate) struct Plot<'a> {
    panel: &'a Panel,
    origin: (f64, f64),
    title: Vec<String>,
    sides: (f64, f64),
    y: Ruler,
    x: Ruler,
    bars: Option<BarTexts>,
}

impl<'a> Plot<'a> {
    /// Places a panel of a size with its upper left corner at `origin`.
    pub(crate) fn of(
        panel: &'a Panel,
        origin: (f64, f64),
        (width, height): (f64, f64),
        titled: bool,
    ) -> Self {
        let title = match titled && !panel.title.is_empty() {
            true => wrapped(&panel.title, SIZE, width - LEFT - RIGHT),
            false => Vec::new(),
        };
        let head = origin.1 + TITLE * title.len() as f64;
        let foot = origin.1 + height - if panel.x.label.is_empty() { 0.0 } else { LABEL };
        let base = foot - TICKS;
        let probe = Ruler::vertical(panel, (base, head + LABELLED_TOP));
        let top = head + if probe.label.is_empty() { TOP } else { LABELLED_TOP };
        let mut y = Ruler::vertical(panel, (base, top));
        let sides = |y: &Ruler| (origin.0 + LEFT + y.label_width(), origin.0 + width - RIGHT);
        let mut bars = None;
        if let Content::Bars { bars: all, .. } = &panel.content {
            // Names below the bars make the axis shorter, with other labels, which leave other room for the names.
            for _ in 0..2 {
                let texts = BarTexts::of(all, sides(&y).1 - sides(&y).0);
                let (below, above) = texts.heights();
                y = Ruler::vertical(panel, (base + LINE - below, top + above));
                bars = Some(texts);
            }
        }
        let sides = match &bars {
            Some(texts) => (sides(&y).1 - texts.across(), sides(&y).1),
            None => sides(&y),
        };
        let x = Ruler::horizontal(panel, sides, (origin.0 + 2.0, origin.0 + width - 2.0));
        Self { panel, origin, title, sides, y, x, bars }
    }

    /// Draws the panel.
    pub(crate) fn draw(&self, svg: &mut Svg) {
        let Self { panel, origin, sides, y, x, .. } = self;
        for (number, line) in self.title.iter().enumerate() {
            let baseline = origin.1 + 13.0 + TITLE * number as f64;
            svg.text((origin.0 + LEFT, baseline), Anchor::Start, "title", line);
        }
        let (bottom, top) = (y.scale.from, y.scale.to);
        if !y.label.is_empty() {
            let baseline = origin.1 + 12.0 + TITLE * self.title.len() as f64;
            svg.text((origin.0 + LEFT, baseline), Anchor::Start, "soft", &y.label);
        }
        y.draw_vertical(svg, *sides);
        if let (Content::Bars { parts, bars }, Some(texts)) = (&panel.content, &self.bars) {
            texts.draw(svg, bars, parts, sides.0, &y.scale);
        } else {
            x.draw_horizontal(svg, bottom + 16.0);
        }
        let across = if self.bars.is_some() { &panel.x.label } else { &x.label };
        if !across.is_empty() {
            let below = self.bars.as_ref().map_or(LINE, |texts| texts.heights().0);
            svg.text((sides.1, bottom + 16.0 + below), Anchor::End, "soft", across);
        }
        match &panel.content {
            Content::Lines(lines) => draw_lines(svg, lines, &x.scale, &y.scale),
            Content::Areas(areas) => draw_areas(svg, areas, &x.scale, &y.scale),
            Content::Bars { .. } => {}
        }
        if let Some(level) = &panel.level
            && let Some(at) = y.scale.place(level.at)
        {
            svg.horizontal(at, *sides, "level");
            let baseline = if at - 16.0 < top { at + 14.0 } else { at - 4.0 };
            svg.text((sides.1 - 4.0, baseline), Anchor::End, "soft halo", &level.label);
        }
    }
}

/// Draws a panel for an HTML page, without its title and legend. Screen readers read `description`.
pub fn plot(panel: &Panel, size: (f64, f64), description: &str) -> String {
    let mut svg = Svg::element(size.0, size.1, "plot", description);
    Plot::of(panel, (0.0, 0.0), size, false).draw(&mut svg);
    svg.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::panel::{Axis, Bar, Level, Series};
    use crate::unit::Unit;

    fn axes() -> (Axis, Axis) {
        (Axis::of("steps", Unit::Count), Axis::of("", Unit::Bytes))
    }

    #[test]
    fn all_numbers_give_a_sound_picture() {
        let line = |values: &[f64]| {
            let points = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
            Series::new("a <b>", points)
        };
        for (values, shapes) in [
            (&[][..], 0),
            (&[1.0][..], 1),
            (&[0.0, 0.0][..], 3),
            (&[f64::NAN, 1.0, f64::INFINITY, 2.0][..], 2),
            (&[-1e200, 1e200][..], 3),
            (&[5e-324, 0.0][..], 3),
            (&[0.001, 0.001 + 2e-19, 0.001][..], 4),
        ] {
            let (x, y) = axes();
            let mut panel = Panel::lines("x & y", x, y, vec![line(values)]);
            panel.level = Some(Level { at: 1.0, label: "x & y".to_owned() });
            let svg = plot(&panel, (WIDTH, HEIGHT), "a < b");
            assert!(
                !svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b>"),
                "{values:?}: {svg}"
            );
            let drawn = ["class=\"dot", "class=\"line"].map(|shape| svg.matches(shape).count());
            assert_eq!(drawn.iter().sum::<usize>(), shapes, "{values:?}: {svg}");
            assert!(
                svg.contains("x &amp; y") && svg.contains("a &lt; b") && !svg.contains("d=\"\""),
                "{svg}"
            );
        }
    }

    #[test]
    fn unknown_bars_say_why() {
        let bar = |name: &str, values, label: &str| Bar {
            name: name.to_owned(),
            values,
            label: label.to_owned(),
            ..Bar::default()
        };
        let bars = vec![bar("a", Some(vec![2.0]), "2.0"), bar("b", None, "failed")];
        let panel = Panel::bars("speed", Axis::default(), Axis::of("", Unit::SamplesPerSecond), bars);
        let svg = plot(&panel, (WIDTH, HEIGHT), "");
        assert_eq!(svg.matches("class=\"area").count(), 1);
        assert!(
            svg.contains("class=\"bad\"") && svg.contains(">failed<") && svg.contains("<title>a: 2</title>")
        );
        let empty = Panel::bars("none", Axis::default(), Axis::default(), Vec::new());
        assert!(empty.is_blank() && !plot(&empty, (WIDTH, HEIGHT), "").contains("NaN"));
    }

    /// Returns the coordinates in a picture.
    fn coordinates(svg: &str) -> Vec<(f64, f64)> {
        let number = |text: &str, name: &str| {
            text.split_once(&format!(" {name}=\""))?.1.split('"').next()?.parse::<f64>().ok()
        };
        let of_tags = svg.split('<').filter_map(|tag| {
            Some((number(tag, "x").or(number(tag, "cx"))?, number(tag, "y").or(number(tag, "cy"))?))
        });
        let commands = svg.split("d=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let of_paths = commands.flat_map(|path| {
            path.split(['M', 'L', 'Z', 'H']).filter_map(|point| {
                let (x, y) = point.split_once(' ')?;
                Some((x.parse().ok()?, y.parse().ok()?))
            })
        });
        of_tags.chain(of_paths).collect()
    }

    /// Returns the left and right ends of the texts in a picture.
    fn extents(svg: &str) -> Vec<(f64, f64)> {
        let of_text = |text: &str| {
            let (attributes, rest) = text.split_once('>')?;
            let x: f64 = attributes.split_once(" x=\"")?.1.split('"').next()?.parse().ok()?;
            let wide = crate::text::width(rest.split('<').next()?, SIZE);
            let share = match () {
                () if attributes.contains("\"middle\"") => 0.5,
                () if attributes.contains("\"end\"") => 1.0,
                () => 0.0,
            };
            Some((x - share * wide, x + (1.0 - share) * wide))
        };
        svg.split("<text").skip(1).filter_map(of_text).collect()
    }

    #[test]
    fn labels_of_both_axes_have_room() {
        for largest in [2.5, 1000.0, 123_456.0, 2e-5, 7.25e8] {
            for height in [160.0, 240.0, 320.0] {
                let points = (1..50).map(|step| (f64::from(step), largest / f64::from(step))).collect();
                let (x, _) = axes();
                let panel = Panel::lines("", x, Axis::default(), vec![Series::new("a", points)]);
                let svg = plot(&panel, (WIDTH, height), "");
                for (left, right) in extents(&svg) {
                    assert!(left >= 0.0 && right <= WIDTH, "{left} {right}: {svg}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn everything_is_inside_of_the_picture(
            values in prop::collection::vec(prop_oneof![prop::num::f64::ANY, -10.0..10.0, 1e-6..1e6], 0..40),
            width in 200.0..900.0, height in 160.0..400.0, stacked: bool,
        ) {
            let series = vec![Series::new("a", values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect())];
            let (x, y) = axes();
            let mut panel = Panel::lines("a long title of this panel", x, y, series.clone());
            if stacked {
                panel.content = Content::Areas(series);
            }
            let mut svg = Svg::element(width, height, "plot", "");
            Plot::of(&panel, (0.0, 0.0), (width, height), true).draw(&mut svg);
            let svg = svg.finish();
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("d=\"\""), "{svg}");
            for (left, right) in extents(&svg) {
                prop_assert!(left >= -0.1 && right <= width + 0.1, "{left} {right}: {svg}");
            }
            for (x, y) in coordinates(&svg) {
                prop_assert!((-0.1..=width + 0.1).contains(&x) && (-0.1..=height + 0.1).contains(&y), "{x} {y}: {svg}");
            }
        }
    }
}
