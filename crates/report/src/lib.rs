//! Reports on training runs from their folders: pages, a live page, a dashboard, and a diagnosis of failures.
//!
//! - A [`Report`] is one HTML page of one or several runs.
//! - [`live`] serves the same pages from this machine and updates them (feature `live`).
//! - [`dashboard`] shows one run on a terminal and passes requests to it (feature `dashboard`).
//! - [`track`] sends the metrics of runs to an experiment tracker (feature `dashboard`).
//! - [`diagnose`] explains why a run failed or hung.
//!
//! This crate only reads the files of runs. It does not depend on tensors, strategies or configuration types.
//!
//! A [`Report`] is a single, self-contained HTML file with styles, scripts, numbers and images. Its tables and first
//! curves are visible without scripts.

#![forbid(unsafe_code)]

mod html;
mod object_tail;
mod step_files;
mod tail;
mod texts;
mod thin;

mod columns;
mod usage;

mod tails;

mod samples;

mod evaluation;
mod settings;
mod sweep;
mod warnings;

mod progress;
mod run;

mod chart;
mod charts;
mod numbers;
mod plot;

mod facts;

mod collect;

mod page;

#[cfg(feature = "live")]
pub(crate) use collect::is_run;
pub use collect::{Options, Report, ReportError};
#[cfg(feature = "live")]
pub(crate) use html::escape;
#[cfg(feature = "live")]
pub(crate) use page::{TABLES, document};
#[cfg(feature = "live")]
pub(crate) use progress::Progress;
#[cfg(feature = "live")]
pub(crate) use run::{State, read_notes, run_state};
pub use settings::Defaults;
#[cfg(feature = "live")]
pub(crate) use tails::{Position, Tails};

#[cfg(feature = "live")]
pub mod live;

#[cfg(feature = "dashboard")]
pub mod dashboard;

#[cfg(feature = "dashboard")]
pub mod track;

pub mod diagnose;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    //! The entry point of the fuzzer.

    /// Renders the run in a folder to a screen in memory.
    pub fn dashboard(run: &std::path::Path) {
        crate::dashboard::fuzzing::render(run);
    }

    #[cfg(test)]
    mod tests {
        use phalanx_fuzz_harness::{Reader, check, files};

        #[test]
        fn the_dashboard_holds_its_limits() {
            let read = |bytes: &[u8]| {
                let place = files::folder();
                files::write(bytes, place.path());
                super::dashboard(place.path());
            };
            check(Reader { name: "run_folder", read, memory: 48 << 20 }, Vec::new(), 100, files::change);
        }
    }
}

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
