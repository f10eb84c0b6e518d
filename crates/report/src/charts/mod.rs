//! Which charts a report has, made of the numbers of its runs.

pub(crate) mod curves;
pub(crate) mod ranks;
pub(crate) mod steps;
pub(crate) mod sweep;
pub(crate) mod usage;
