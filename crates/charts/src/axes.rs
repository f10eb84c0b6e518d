//! Axes: their scales, the ticks that fit, and labels with units.

use super::panel::{Axis, AxisScale, Content, Panel};
use super::scale::{Scale, drawable, pressed_flat, range};
use super::svg::{Anchor, Svg};
use super::text::width;
use super::unit::Unit;

/// The font size of ticks.
pub(crate) const SIZE: f64 = 12.0;
/// The height that a tick of the y axis takes, and the least width that one of the x axis takes.
const TICK_HEIGHT: f64 = 34.0;
const TICK_WIDTH: f64 = 56.0;
/// The most ticks of an axis.
const MOST: usize = 10;
/// The gap between labels of the x axis.
const GAP: f64 = 12.0;

/// A tick: its coordinate, the middle of its label, and the label.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) middle: f64,
    pub(crate) label: String,
}

/// An axis with its ticks and its label.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ruler {
    pub(crate) scale: Scale,
    pub(crate) ticks: Vec<Tick>,
    pub(crate) label: String,
}

/// Returns the heights that areas reach together at each index.
pub(crate) fn stacked(content: &Content) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    if let Content::Areas(series) = content {
        for series in series {
            sums.resize(sums.len().max(series.points.len()), 0.0);
            let values = series.points.iter().map(|point| drawable(point.1).unwrap_or_default());
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
    sums
}

/// Returns the scale of the y axis, from the lower to the upper coordinate.
fn vertical_scale(panel: &Panel, (bottom, top): (f64, f64)) -> Scale {
    match &panel.content {
        Content::Lines(series) => {
            let lines: Vec<Vec<f64>> =
                series.iter().map(|series| series.points.iter().map(|point| point.1).collect()).collect();
            let levels = panel.level.iter().map(|level| level.at);
            let all = range(lines.iter().flatten().copied().chain(levels.clone()));
            let flat = || pressed_flat(lines.iter().map(Vec::as_slice));
            let is_share = matches!(panel.y.unit, Unit::Share | Unit::Percent);
            let is_logarithmic = match panel.y.scale {
                AxisScale::Auto => !is_share && all.is_some_and(|(low, _)| low > 0.0) && flat(),
                AxisScale::Linear => false,
                AxisScale::Logarithmic => true,
            };
            let positive =
                range(lines.iter().flatten().copied().chain(levels).filter(|number| *number > 0.0));
            match positive.filter(|_| is_logarithmic) {
                Some(positive) => Scale::logarithmic(positive, bottom, top).with_room(),
                None => Scale::linear(all, bottom, top).with_room(),
            }
        }
        Content::Areas(_) => from_zero(stacked(&panel.content).into_iter(), bottom, top),
        Content::Bars { bars, .. } => {
            let sums = bars.iter().filter_map(|bar| Some(bar.values.as_ref()?.iter().sum::<f64>()));
            from_zero(sums, bottom, top)
        }
    }
}

/// Returns a linear scale that includes 0.
fn from_zero(numbers: impl Iterator<Item = f64>, bottom: f64, top: f64) -> Scale {
    let (low, high) = range(numbers.chain([0.0])).unwrap_or_default();
    let high = if low == 0.0 && high == 0.0 { 1.0 } else { high };
    Scale { high: high + 0.04 * (high - low), ..Scale::linear(Some((low, high)), bottom, top) }
}

/// Returns the label of an axis: its quantity, its unit, and the word *logarithmic*.
fn label(axis: &Axis, unit: &str, scale: &Scale) -> String {
    let quantity = match (axis.label.as_str(), unit) {
        ("", unit) => unit.to_owned(),
        (label, "") => label.to_owned(),
        (label, unit) => format!("{label} ({unit})"),
    };
    match (quantity.is_empty(), scale.logarithmic) {
        (_, false) => quantity,
        (true, true) => "logarithmic".to_owned(),
        (false, true) => format!("{quantity}, logarithmic"),
    }
}

/// Returns the number in whose unit the numbers of a scale are labelled.
fn representative(scale: &Scale) -> f64 {
    match scale.logarithmic {
        // The middle of the axis.
        true => (scale.low.ln() / 2.0 + scale.high.ln() / 2.0).exp(),
        false => scale.low.abs().max(scale.high.abs()),
    }
}

/// Returns about `count` ticks of a scale, and the name of their unit.
fn ticks(scale: &Scale, unit: Unit, count: usize) -> (Vec<Tick>, &'static str) {
    let measure = unit.measure(representative(scale));
    let numbers = scale.ticks(count, measure.factor, unit.is_whole());
    let labels = scale.labels(&numbers);
    let tick = |(number, label): (&f64, String)| {
        let at = scale.at(number * measure.factor);
        Tick { at, middle: at, label }
    };
    (numbers.iter().zip(labels).map(tick).collect(), measure.name)
}

impl Ruler {
    /// Creates the y axis of a panel between two coordinates.
    pub(crate) fn vertical(panel: &Panel, (bottom, top): (f64, f64)) -> Self {
        let scale = vertical_scale(panel, (bottom, top));
        let count = ((bottom - top) / TICK_HEIGHT).clamp(1.0, MOST as f64) as usize;
        let (ticks, unit) = ticks(&scale, panel.y.unit, count);
        Self { label: label(&panel.y, unit, &scale), scale, ticks }
    }

    /// Creates the x axis of a panel between two coordinates, with labels between `first` and `last`.
    pub(crate) fn horizontal(panel: &Panel, (left, right): (f64, f64), (first, last): (f64, f64)) -> Self {
        let series = match &panel.content {
            Content::Lines(series) | Content::Areas(series) => series.as_slice(),
            Content::Bars { .. } => &[],
        };
        let places = series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
        let scale = match panel.x.scale {
            AxisScale::Auto | AxisScale::Linear => Scale::linear(range(places), left, right),
            AxisScale::Logarithmic => {
                let positive = range(places.filter(|place| *place > 0.0));
                Scale::logarithmic(positive.unwrap_or((0.1, 1.0)), left, right)
            }
        };
        let most = ((right - left) / TICK_WIDTH).clamp(1.0, MOST as f64) as usize;
        let (mut fitting, mut unit) = (Vec::new(), "");
        for count in (1..=most).rev() {
            (fitting, unit) = ticks(&scale, panel.x.unit, count);
            keep_inside(&mut fitting, first, last);
            if do_fit(&fitting) {
                break;
            }
        }
        let mut free = f64::NEG_INFINITY;
        fitting.retain(|tick| {
            let half = 0.5 * width(&tick.label, SIZE);
            let fits = tick.middle - half >= free;
            free = if fits { tick.middle + half + GAP } else { free };
            fits
        });
        Self { label: label(&panel.x, unit, &scale), scale, ticks: fitting }
    }

    /// Returns the width of the widest label.
    pub(crate) fn label_width(&self) -> f64 {
        self.ticks.iter().map(|tick| width(&tick.label, SIZE)).fold(0.0, f64::max)
    }

    /// Draws the grid lines and the labels left of them.
    pub(crate) fn draw_vertical(&self, svg: &mut Svg, (left, right): (f64, f64)) {
        for tick in &self.ticks {
            svg.horizontal(tick.at, (left, right), "grid");
            svg.text((left - 6.0, tick.at + 4.0), Anchor::End, "soft", &tick.label);
        }
    }

    /// Draws the labels on the baseline `y`.
    pub(crate) fn draw_horizontal(&self, svg: &mut Svg, y: f64) {
        for tick in &self.ticks {
            svg.text((tick.middle, y), Anchor::Middle, "soft", &tick.label);
        }
    }
}

/// Moves labels that would cross an end of the picture.
fn keep_inside(ticks: &mut [Tick], first: f64, last: f64) {
    for tick in ticks {
        let half = 0.5 * width(&tick.label, SIZE);
        tick.middle = tick.at.min(last - half).max(first + half);
    }
}

/// Returns true if no label touches the next one.
fn do_fit(ticks: &[Tick]) -> bool {
    let half = |tick: &Tick| 0.5 * width(&tick.label, SIZE);
    ticks.windows(2).all(|pair| pair[0].middle + half(&pair[0]) + GAP <= pair[1].middle - half(&pair[1]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::panel::{Level, Series};

    fn panel(unit: Unit, points: &[(f64, f64)]) -> Panel {
        let series = Series::new("a", points.to_vec());
        Panel::lines("", Axis::of("steps", Unit::Count), Axis::of("", unit), vec![series])
    }

    #[test]
    fn labels_have_units_and_say_that_an_axis_is_logarithmic() {
        let vertical =
            |unit, points: &[(f64, f64)]| Ruler::vertical(&panel(unit, points), (200.0, 0.0)).label;
        assert_eq!(vertical(Unit::Bytes, &[(1.0, 3e6), (2.0, 5e6)]), "MiB");
        assert_eq!(vertical(Unit::Plain, &[(1.0, 3.0), (2.0, 5.0)]), "");
        let falling: Vec<_> = (1..200).map(|step| (f64::from(step), 9.0 / f64::from(step).powi(2))).collect();
        assert_eq!(vertical(Unit::Plain, &falling), "logarithmic");
        assert_eq!(vertical(Unit::SamplesPerSecond, &falling), "samples/s, logarithmic");
        let mut level = panel(Unit::Plain, &falling);
        level.level = Some(Level { at: -1.0, label: "below 0".to_owned() });
        assert_eq!(Ruler::vertical(&level, (200.0, 0.0)).label, "", "a level has no logarithm");
        let horizontal = |panel: &Panel| Ruler::horizontal(panel, (40.0, 400.0), (0.0, 410.0));
        assert_eq!(horizontal(&panel(Unit::Plain, &falling)).label, "steps");
        let mut rates = panel(Unit::Plain, &[(0.0, 1.0), (1e-7, 1.0), (1e-4, 2.0), (0.1, 3.0)]);
        (rates.x.unit, rates.x.scale) = (Unit::Plain, AxisScale::Logarithmic);
        let across = horizontal(&rates);
        assert_eq!(across.label, "steps, logarithmic");
        assert!(
            (across.scale.at(1e-4) - 220.0).abs() < 1e-9,
            "equal ratios have equal distances: {across:?}"
        );
        assert_eq!(across.scale.place(0.0), None, "0 has no place");
    }

    #[test]
    fn bars_and_areas_begin_at_zero() {
        let areas = |values: &[f64]| {
            let points = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
            Series::new("a", points)
        };
        let content = Content::Areas(vec![areas(&[1.0, 5.0]), areas(&[f64::NAN, 5.0, 1.0])]);
        let panel = Panel { content, ..panel(Unit::Plain, &[]) };
        assert_eq!(stacked(&panel.content), [1.0, 10.0, 1.0]);
        let scale = Ruler::vertical(&panel, (100.0, 0.0)).scale;
        assert_eq!((scale.low, scale.high), (0.0, 10.4));
    }

    proptest! {
        #[test]
        fn labels_of_the_x_axis_do_not_overlap_or_leave_the_picture(
            low in -1e9..1e9, span in 1e-3..1e12, room in 40.0..900.0,
        ) {
            let across = Ruler::horizontal(&panel(Unit::Plain, &[(low, 0.0), (low + span, 1.0)]), (50.0, 50.0 + room), (0.0, 60.0 + room));
            prop_assert!(!across.ticks.is_empty());
            prop_assert!(do_fit(&across.ticks), "{across:?}");
            for tick in &across.ticks {
                let half = 0.5 * width(&tick.label, SIZE);
                prop_assert!(tick.middle - half >= -1e-9 && tick.middle + half <= 60.0 + room + 1e-9, "{across:?}");
            }
        }
    }
}
