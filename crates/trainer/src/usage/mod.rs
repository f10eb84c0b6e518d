//! What a run costs over time, rank by rank: processors, memory by kind, network, disks, page faults, energy.
//!
//! A [`Sampler`] looks about once a second, on a thread of its own, and appends a line ([`UsageLine`]) to the rank's file in
//! `logs/`. What the system knows it asks the system ([`ProcessUsage`], [`Powercap`]); what only the training knows the training
//! says, at a step's end, by a [`Progress`]. A number that nobody knows is left out, and energy says how it is known.

mod energy;
mod powercap;
mod process;
mod progress;
mod sampler;

pub use energy::{CpuEnergy, RankEnergy, together};
pub use powercap::{FOLDER_VARIABLE, Powercap, PowercapError};
pub use process::ProcessUsage;
pub use progress::{HeldBytes, Progress, Spent};
pub use sampler::{GpuReading, Sampled, Sampler, UsageLine, Used};
