//! The terminal dashboard of a running or finished run, on this host or in a shared folder.
//!
//! It reads only the run's folder, so it works the same for trainings of this process and of other processes. Requests
//! of users are files in that folder, too: see [`phalanx_run::Request`].
//!
//! `tail` and `source` read files, `model` holds their content, `view` the user's selection. `layout` and `draw` render
//! them; `terminal` sets up and restores the screen. `show` is the main loop. `plain` is the output without a terminal.

mod tail;

mod curve;
mod usage;

mod model;

mod source;

mod followed;

mod palette;
mod view;

mod layout;

mod draw;

mod pending_requests;
mod terminal;

mod plain;
mod show;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests;

pub(crate) use followed::{FollowedRun, RunNews};
pub(crate) use model::Status;
pub use plain::{Outcome, follow, send_request};
pub use show::{ExitReason, OwnTraining, show};
pub use terminal::is_terminal;
