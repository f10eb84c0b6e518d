//! The rules by which ranks wait for each other: clocks, one bound, and a store that knows the age of every copy.
//!
//! Nothing here knows of threads, messages or tensors. A parameter server is this with parameters in the store and messages at
//! its door; a test is this with a script; [`simulate`] is this with a virtual clock.
//!
//! Read in this order: [`Clocks`] counts the steps of workers and admits them, [`RequestQueues`] holds requests that
//! are not admitted yet, [`VersionedStore`] counts changes and measures their staleness, [`simulate`] runs scripted
//! workers against it; [`SyncOptions`] and [`Topology`] are the user's choices.

mod clocks;
mod options;
mod store;
mod topology;
mod virtual_time;
mod waiting;

pub use crate::parallel::Histogram;
pub use clocks::Clocks;
pub use options::{CatchUp, SyncOptions};
pub use store::{PullResult, PushResult, VersionedStore};
pub use topology::Topology;
pub use virtual_time::{Timeline, simulate};
pub use waiting::{Act, RequestQueues};
