//! The tests of `phalanx-checkpoint` that need more than one of its modules.

mod ranges;
mod regions;
