//! The dashboard: a run of this host, or of a folder that hosts share, while it goes on and when it is over.
//!
//! It reads the run's folder and nothing else, so trainings look alike whether this process started them or another
//! one, and a training does not know that it is watched. Requests of users go the same way back: see
//! [`phalanx_run::Request`].
//!
//! Read in this order: `tail` and `source` read files, `model` knows what they say, `view` what a user wants to see of
//! it, `layout` where that goes and `draw` how it looks; `terminal` takes and gives back the screen, `show` is the loop
//! over all of them, and `plain` is what there is without a terminal.

mod tail;

mod curve;
mod usage;

mod model;

mod source;

mod palette;
mod view;

mod layout;

mod draw;

mod asking;
mod terminal;

mod plain;
mod show;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests;

pub use plain::{Outcome, ask, follow};
pub use show::{Left, Own, show};
pub use terminal::is_terminal;
