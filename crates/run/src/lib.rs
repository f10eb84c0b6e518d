//! The record of a training run: its folder, and the files in it.
//!
//! | file | holds |
//! |---|---|
//! | `config.toml` | the resolved configuration; `phalanx train` accepts it |
//! | `run.json` | its starts: command line, time, host, git commit: see [`RunStarts`] |
//! | `metrics.jsonl` | one line for each logged step |
//! | `metrics-by-rank.jsonl` | if ranks do not take every step together: time and losses of each rank and step |
//! | `state.json` | the current state: see [`RunState`] |
//! | `requests/` | pending requests of users: see [`Request`] |
//! | `joins/` | processes that wait to join an elastic run: see [`JoinTicket`] |
//! | `job.sh`, `job.json`; `join.sh`, `join-N.json` | the job that trains it, and jobs that join it  |
//! | `lock` | the process that trains the run now: see [`RunLock`] |
//! | `saved` | the step of the newest checkpoint that was ever saved |
//! | `data.json` | the fingerprint of the data, which a resumption compares |
//! | `weights.json` | with `model.weights`: the tensors that were loaded, made new and not used |
//! | `damaged.txt` | with `data.on_damage = "skip"`: the damaged images that others have replaced |
//! | `config.proposed.toml`, `start.proposed` | the configuration and the start of a resumption that is not accepted yet |
//! | `summary.json` | the outcome, metrics and cost |
//! | `checkpoints/` | checkpoints: safetensors and a JSON index |
//! | `samples/` | grids of samples, as PNG |
//! | `evaluation/` | pictures that evaluations made, PNG or SVG, which the report shows; of a classifier `classes.json`, `confusion.svg` and `mistakes.svg` of the last evaluation |
//! | `explain/` | of `phalanx explain`: `explain.json` (see [`CaptionUse`]), `levels.svg`, `attention.png` |
//! | `notes.md` | notes that the user wrote, which pages show |
//! | `curves.svg` | the measure that leads, or the losses, over the steps |
//! | `synchrony.svg` | staleness and waiting times, if ranks do not take every step together |
//! | `first/` | the run of the first stage, if both stages were trained together |
//! | `report.html` | the page that `phalanx report` writes |
//! | `events.out.tfevents.…` | the same numbers and samples for TensorBoard, if `log.tensorboard` is set |
//! | `logs/rank-N.log` | the log of each rank |
//! | `logs/rank-N.usage.jsonl` | the resource use of each rank, about once a second |
//! | `trace.json` | the trace of all ranks, if enabled |
//! | `logs/rank-N.flight.json` | after a failure: the last operations and stacks of a rank, for `phalanx diagnose` |

#![forbid(unsafe_code)]

mod atomic;
mod bitmap_font;
mod caption_use;
mod classes;
mod clock;
mod curves;
mod energy;
mod failure_report;
mod folder;
pub mod format;
mod grid;
mod joins;
mod lock;
mod machine;
mod metrics;
mod next_commands;
mod picture;
mod process;
mod protobuf;
mod request;
mod restart;
mod start;
mod state;
mod stop;
mod summary;
mod summary_table;
mod synchrony_picture;
mod tensorboard;
mod usage_line;
mod weights;

pub use atomic::{create_synced, open_to_append, sync_folder, write_aside};
pub use caption_use::{CaptionUse, LevelErrors, ReadFeatures};
pub use classes::{
    ClassReport, ClassRow, ClassScore, Confused, ConfusionMatrix, Mistake, PlanarPicture, class_lines,
    confusion_svg, mistakes_svg,
};
pub use clock::timestamp;
pub use curves::curves_svg;
pub use energy::{EnergyKind, EnergyPart, EnergySummary};
pub use failure_report::FailureReport;
pub use folder::{RunError, RunFolder};
pub use grid::Grid;
pub use joins::{Invitation, JoinCandidates, JoinTicket};
pub use lock::{LockHolder, LockedFolder, RunLock};
pub use machine::{Machine, host_name, peak_memory, resident_memory};
pub use metrics::{Line, MetricsWriter, read_metrics, read_whole_metrics};
pub use next_commands::{NextCommands, TextUse};
/// Opens and reads files of a run's folder: links in place of files are refused.
pub use phalanx_data::Links;
pub use picture::{read_mask, read_picture};
pub use process::{REPLICA_THREAD, SUPERVISED};
pub use protobuf::Message;
pub use request::{Refusal, Request};
pub use start::{GitState, RunStart, RunStarts};
pub use state::{RunActivity, RunState};
pub use stop::{StopFlag, StopSubscription};
pub use summary::{
    ArithmeticRate, BestEvaluation, DeadRank, LeftRank, PassSummary, RankSummary, StagesSummary, Summary,
    SyncSummary, UnitRate, WorldChange,
};
pub use summary_table::{aligned, finished};
pub use synchrony_picture::synchrony_svg;
pub use tensorboard::EventFile;
pub use usage_line::{GpuLine, MemoryLine, TimeLine, TransferLine, UsageLine};
pub use weights::{AdaptersRecord, NewTensor, WeightsRecord, WeightsSummary};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
