//! When ranks wait for each other: clocks, one bound, and a store that knows how old everybody's values are.
//!
//! Nothing here knows of threads, messages or tensors. A parameter server is this with parameters in the store and messages at
//! its door; a test is this with a script; [`simulate`] is this with a virtual clock.
//!
//! To be read in this order: [`Clocks`] counts everybody's steps and says who may go on, [`Waiting`] keeps those who may not yet,
//! [`VersionedStore`] counts changes and tells how stale a change is, [`simulate`] lets scripted workers run against it;
//! [`SyncOptions`] and [`Topology`] are what a user chooses.

mod clocks;
mod options;
mod store;
mod topology;
mod virtual_time;
mod waiting;

pub use crate::parallel::Histogram;
pub use clocks::Clocks;
pub use options::{CatchUp, SyncOptions};
pub use store::{Pulled, Pushed, VersionedStore};
pub use topology::Topology;
pub use virtual_time::{Timeline, simulate};
pub use waiting::{Act, Waiting};
