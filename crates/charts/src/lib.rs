//! Charts as SVG: panels of lines, stacked areas or bars.
//!
//! - A [`Figure`] is a stand-alone file: panels in rows with one legend. [`plot`] draws one panel for an HTML page.
//! - Ticks are round (1, 2, 5 times a power of ten), and there are only as many as fit.
//! - A line whose values would be pressed flat gets a logarithmic axis, which says so; see [`pressed_flat`].
//! - A name has one style in all panels; see [`Styles`]. The colours differ with any colour vision, on light and on dark
//!   backgrounds.
//! - Missing values are gaps, and values without neighbours are dots.
//!
//! Texts are measured by a table of widths, so the output needs no fonts and depends on the data only.
//!
//! This crate reads and writes no files and does not depend on runs.

#![forbid(unsafe_code)]

mod text;

mod unit;

mod scale;
mod ticks;

mod palette;
mod svg;

mod panel;

mod legend;

mod axes;
mod bars;
mod lines;

mod plot;

mod figure;
mod timetable;

pub use figure::Figure;
pub use palette::{COLOURS, DASHES, Style, Styles, page_style};
pub use panel::{Axis, AxisScale, Bar, Content, Level, Panel, Series};
pub use plot::{HEIGHT, WIDTH, plot};
pub use scale::pressed_flat;
pub use svg::{Anchor, Svg, escape};
pub use text::{ADVANCES, width};
pub use ticks::{labels, ticks};
pub use timetable::{Timetable, TimetableBox, TimetableRow};
pub use unit::{Measure, Unit};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
