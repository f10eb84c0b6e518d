//! The record of a training run: its folder, and the files in it.
//!
//! | file | holds |
//! |---|---|
//! | `config.toml` | the resolved configuration, which can be run again |
//! | `metrics.jsonl` | a line for every logged step |
//! | `metrics-by-rank.jsonl` | where ranks do not take every step together, a line for each rank and step: when it was done, and its own losses |
//! | `state.json` | what the run is doing now: see [`RunState`] |
//! | `requests/` | what users have asked the run for, and it has not heard yet: see [`Request`] |
//! | `joins/` | processes that want to take part, where the world may change: see [`JoinTicket`] |
//! | `job.sh`, `job.json`; `join.sh`, `join-N.json` | the job that trains it, and jobs that join it  |
//! | `summary.json` | how the run ended, what it reached and what it cost |
//! | `checkpoints/` | checkpoints: safetensors and a JSON index |
//! | `samples/` | grids of pictures, as PNG |
//! | `curves.svg` | the loss over the steps |
//! | `synchrony.svg` | how stale updates were and how long ranks waited, if ranks do not take every step together |
//! | `first/` | the run that this one builds on, if it was trained with it: a folder like this |
//! | `report.html` | the page that `phalanx report` makes of all this |
//! | `events.out.tfevents.…` | the same numbers and samples for TensorBoard, if `log.tensorboard` is set |
//! | `logs/rank-N.log` | what each rank has to say |
//! | `logs/rank-N.usage.jsonl` | what each rank used, about once a second |
//! | `trace.json` | what all ranks did when, if that was asked for |
//! | `logs/rank-N.flight.json` | what a rank last did with the others, if that failed, and its stacks; `phalanx diagnose` reads them |

#![forbid(unsafe_code)]

mod atomic;
mod chart;
mod clock;
mod curves;
mod energy;
mod failure_report;
mod folder;
pub mod format;
mod grid;
mod joins;
mod machine;
mod metrics;
mod picture;
mod process;
mod request;
mod state;
mod stop;
mod summary;
mod summary_table;
pub mod svg;
mod synchrony_picture;
mod tensorboard;
mod usage_line;

pub use atomic::{sync_folder, write_aside};
pub use chart::{Panel, Series, panels_svg};
pub use clock::timestamp;
pub use curves::curves_svg;
pub use energy::{EnergyKind, EnergyPart, EnergySummary};
pub use failure_report::FailureReport;
pub use folder::{RunError, RunFolder};
pub use grid::Grid;
pub use joins::{Invitation, JoinTicket, Waiting};
pub use machine::{Machine, host_name, peak_memory, resident_memory};
pub use metrics::{Line, MetricsWriter, read_metrics};
pub use picture::{read_mask, read_picture};
pub use process::{REPLICA_THREAD, SUPERVISED};
pub use request::{Refusal, Request};
pub use state::{Doing, RunState};
pub use stop::{StopFlag, StopSubscription};
pub use summary::{DeadRank, RankSummary, Summary, SyncSummary, WorldChange};
pub use summary_table::{aligned, finished};
pub use synchrony_picture::synchrony_svg;
pub use tensorboard::EventFile;
pub use usage_line::{GpuLine, MemoryLine, TimeLine, TransferLine, UsageLine};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
