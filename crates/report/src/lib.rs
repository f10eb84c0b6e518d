//! Shows training runs from the folders that they leave: pages, a live page, a dashboard, and a diagnosis of failures.
//!
//! - A [`Report`] is one HTML page of one or several runs.
//! - [`live`] serves the same pages from this machine while runs go on (feature `live`).
//! - [`dashboard`] shows one run on a terminal and passes requests to it (feature `dashboard`).
//! - [`diagnose`] explains why a run failed or hung.
//!
//! It reads files and starts no training: it knows no tensors, no strategies and no configuration types.
//!
//! A [`Report`] is collected from the files that exist in folders of runs. It becomes a single HTML file that fetches
//! nothing: styles, scripts, numbers and pictures are in it. Its tables and first curves are visible without scripts.

#![forbid(unsafe_code)]

mod html;
mod object_tail;
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

#[cfg(feature = "live")]
pub(crate) use collect::is_run;
pub use collect::{Options, Report, ReportError};
#[cfg(feature = "live")]
pub(crate) use html::escape;
#[cfg(feature = "live")]
pub(crate) use page::{TABLES, document};
#[cfg(feature = "live")]
pub(crate) use run::run_state;
#[cfg(feature = "live")]
pub(crate) use tails::{Position, Tails};

#[cfg(feature = "live")]
pub mod live;

#[cfg(feature = "dashboard")]
pub mod dashboard;

pub mod diagnose;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    //! The dashboard's reader for the fuzzer of this workspace.

    /// Shows the run in a folder on a screen in memory.
    pub fn dashboard(run: &std::path::Path) {
        crate::dashboard::fuzzing::look(run);
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
