//! The data of a chart: axes with lines, stacked areas or bars.

use super::palette::Style;
use super::unit::Unit;

/// The map of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AxisScale {
    /// Logarithmic if a linear axis would press a line flat; see [`pressed_flat`](crate::pressed_flat).
    #[default]
    Auto,
    /// Linear.
    Linear,
    /// Logarithmic. Numbers up to 0 are left out.
    Logarithmic,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Axis {
    /// The quantity; empty if the title of the panel names it.
    pub label: String,
    /// The unit.
    pub unit: Unit,
    /// The map. An x axis is linear unless it is told to be logarithmic.
    pub scale: AxisScale,
}

impl Axis {
    /// Creates an axis of a quantity.
    pub fn of(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit, scale: AxisScale::Auto }
    }
}

/// A line, or an area of a stack.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The style. A [`Figure`](crate::Figure) assigns styles by name.
    pub style: Style,
    /// The points, in the order of x. A y that is not finite makes a gap.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Creates a line.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), style: Style::default(), points }
    }

    /// Returns true if a point can be drawn and is not 0.
    pub(crate) fn is_shown(&self) -> bool {
        self.points.iter().any(|(x, y)| x.is_finite() && y.is_finite() && *y != 0.0)
    }
}

/// A bar of parts that are stacked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bar {
    /// The name below it.
    pub name: String,
    /// A smaller text below its name.
    pub note: String,
    /// The values of the parts; `None` if they are unknown.
    pub values: Option<Vec<f64>>,
    /// The text above it, or in the place of an unknown bar.
    pub label: String,
}

/// The content of a panel.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Separate lines.
    Lines(Vec<Series>),
    /// Areas on top of each other, with common x values.
    Areas(Vec<Series>),
    /// Bars next to each other.
    Bars {
        /// The names and styles of the parts of each bar. An empty name is not in the legend.
        parts: Vec<(String, Style)>,
        /// The bars.
        bars: Vec<Bar>,
    },
}

/// A marked level of the y axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// The level.
    pub at: f64,
    /// Its label.
    pub label: String,
}

/// A pair of axes with lines, areas or bars.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The x axis; of bars only its label counts.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The content.
    pub content: Content,
    /// A marked level.
    pub level: Option<Level>,
}

impl Panel {
    /// Creates a panel of lines.
    pub fn lines(title: impl Into<String>, x: Axis, y: Axis, lines: Vec<Series>) -> Self {
        Self { title: title.into(), x, y, content: Content::Lines(lines), level: None }
    }

    /// Creates a panel of bars of one part. Bars without a text above show their values to screen readers only.
    pub fn bars(title: impl Into<String>, x: Axis, y: Axis, bars: Vec<Bar>) -> Self {
        let content = Content::Bars { parts: vec![(String::new(), Style::default())], bars };
        Self { title: title.into(), x, y, content, level: None }
    }

    /// Returns true if it has no number except 0: there is nothing to see.
    pub fn is_blank(&self) -> bool {
        match &self.content {
            Content::Lines(series) | Content::Areas(series) => !series.iter().any(Series::is_shown),
            Content::Bars { bars, .. } => {
                let mut values = bars.iter().flat_map(|bar| bar.values.iter().flatten());
                !values.any(|value| value.is_finite() && *value != 0.0)
                    && bars.iter().all(|bar| bar.label.is_empty())
            }
        }
    }

    /// Returns the names and styles of its legend.
    pub(crate) fn names(&self) -> Vec<(&str, Style)> {
        match &self.content {
            Content::Lines(series) | Content::Areas(series) => {
                series.iter().map(|series| (series.name.as_str(), series.style)).collect()
            }
            Content::Bars { parts, .. } => {
                let named = parts.iter().filter(|(name, _)| !name.is_empty());
                named.map(|(name, style)| (name.as_str(), *style)).collect()
            }
        }
    }
}
