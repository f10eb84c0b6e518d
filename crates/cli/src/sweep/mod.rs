//! Sweeps: many trainings that differ in what a file says, and tables and pictures of what came of them.
//!
//! A file names a preset, and axes along which its keys vary. Every combination is trained, once for each seed, by a
//! process of its own in a folder of its own. Finished runs are not trained again, so an interrupted sweep, or one with
//! a new axis, continues. A [`search`] draws keys from the outcomes of earlier runs. A *study* is such a file that ships
//! inside the program.
//!
//! ```
//! use phalanx_cli::sweep::{SweepFile, Trials};
//!
//! let file = SweepFile::parse("rates.toml", r#"
//!     about = "Which rate does a batch want?"
//!     extends = "tiny"
//!     seeds = [0, 1, 2]
//!     [[axis]]
//!     key = "train.global_batch"
//!     values = [16, 32]
//!     [[axis]]
//!     key = "optim.lr"
//!     values = [1e-3, 2e-3]
//! "#)?;
//! let trials = Trials::of(&file, &[], false);
//! assert_eq!((trials.runs.len(), trials.tables[0].trials.len()), (12, 4));
//! # Ok::<(), phalanx_cli::sweep::SweepFileError>(())
//! ```

pub mod search;

mod compared;

mod check;
mod file;

mod energy;
mod outcome;
mod trials;

mod place;
mod watch;

mod schedule;

mod run;

mod picture;
mod table;

mod forms;

mod predicted;
mod scaling;

mod best;
mod importance;

mod results;

pub use best::{BestRow, SweepView};
pub use compared::{Comparison, PublishedNumbers, Relative};
pub use energy::EnergySource;
pub use file::{Axis, Choice, Part, Scaling, SweepFile, SweepFileError, Target};
pub use importance::{Importance, KeyShare};
pub use outcome::{NUMBERS, Outcome, Point};
pub use picture::curves;
pub use place::SweepFolder;
pub use predicted::{RunPlan, predict};
pub use results::{Conditions, Results, TableResult};
pub use run::{Caller, Runner};
pub use scaling::{Speedups, speedups, speedups_svg};
pub use schedule::{Configure, Ended, Job, Next, Planned, PlannedRun, Schedule, TrainingEnd};
pub use table::{Outcomes, ResultTable, Row, Spread};
pub use trials::{Objective, Run, SearchRows, TRIAL, Table, Trial, Trials};
pub use watch::PruneWatch;
