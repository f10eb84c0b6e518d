//! Training itself.

mod meter;
mod observer;
mod plan;
mod world;

pub use meter::{Meter, Spent};
pub use observer::{Event, Observer, Silent, Started, StepReport};
pub use plan::Plan;
pub use world::*;
