//! Which charts a report has, made of the numbers of its runs.

pub(crate) mod curves;
pub(crate) mod ranks;
pub(crate) mod usage;
