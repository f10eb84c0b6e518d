//! Predictions of memory, traffic and time, computed before anything is allocated.

pub mod plan;
pub(crate) mod timing;
