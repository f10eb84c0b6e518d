//! Tracing of all ranks on a common clock, in Chrome's trace format, and analysis of traces.
//!
//! Other crates emit `tracing` spans of level TRACE whose targets are [`PREFIX`] and the [`Category`]. A [`layer`]
//! collects them by thread while the steps of [`TraceSteps`] run. Without the layer these spans are disabled; `tracing`
//! checks this once for each call site. At the end of a run, each rank converts its events ([`chrome`]) to rank 0's
//! clock, by the offset that [`clock`] measured, and rank 0 writes them to one file. [`TraceFile`] reads such a file.
//! [`TraceSummary`] computes waiting times, and [`StepLanes`] timelines of some steps.

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
pub use event::{Arg, Event, EventKind, IssuePoint, Track};
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
