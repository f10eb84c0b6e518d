//! A report: one page that tells what runs trained, what came of it, and what it cost.
//!
//! A [`Report`] is collected from folders of runs, whatever of their files is there, and becomes a single HTML file that fetches
//! nothing: styles, scripts, numbers and pictures are in it. Its tables and first curves are there without scripts.

mod html;
mod tail;
mod thin;

mod columns;
mod usage;

mod tails;

mod samples;
mod settings;
mod sweep;
mod warnings;

mod run;

mod chart;
mod charts;
mod numbers;
mod svg;

mod facts;

mod collect;

mod page;

pub(crate) use collect::is_run;
pub use collect::{Options, Report, ReportError};
pub(crate) use html::escape;
pub(crate) use page::{TABLES, document};
pub(crate) use run::run_state;
pub(crate) use tails::{Position, Tails};
