//! The tests of `phalanx-report` that need more than one of its modules.

mod live;
mod report;
