//! When each rank did what: spans of all ranks on one clock, in Chrome's trace format, and what can be read from them.
//!
//! The crates below emit `tracing` spans of level TRACE whose targets begin with [`PREFIX`]; what follows it is the
//! [`Category`]. A [`layer`] collects them, thread by thread, while steps are recorded that [`TraceSteps`] names; without it
//! these spans are disabled, which `tracing` checks once for each call site. At the end of a run each rank renders its
//! events ([`chrome`]) by rank 0's clock, as far as [`clock`] has measured it, and rank 0 writes them into one file.
//! [`TraceFile`] reads such a file, [`TraceSummary`] tells what ranks waited for, and [`StepLanes`] what they did in some steps.

#![forbid(unsafe_code)]

mod category;
pub mod chrome;
pub mod clock;
mod event;
mod file;
mod layer;
mod recorder;
mod steps;
mod summary;

pub use category::{Category, PREFIX};
pub use event::{Arg, Event, EventKind, Issued, Track};
pub use file::{FileEvent, TraceError, TraceFile};
pub use layer::{TraceLayer, layer};
pub use recorder::{RecordedTrace, Recorder};
pub use steps::TraceSteps;
pub use summary::{
    Activity, CriticalPart, IdleTime, Lane, OperationTime, RankLanes, RankTime, SlowestRank, StepLanes,
    StepPath, TraceSummary,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
