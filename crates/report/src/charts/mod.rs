//! The charts of a report.

pub(crate) mod curves;
pub(crate) mod ranks;
pub(crate) mod steps;
pub(crate) mod sweep;
pub(crate) mod usage;
