//! The tests of this crate: one program, a module for each subject.
//!
//! All but [`toolkit`] run on the software GPU, whose libraries are built once and whose compiled kernels are cached for all
//! tests. `PHALANX_TEST_GPU=1` runs the tests of kernels and graphs on the first GPU of the machine instead.

#[path = "../software/mod.rs"]
mod software;

mod harness;

mod driver_rules;
mod fibres;

mod device;
mod kernels;
mod libraries;

mod graph_replays;
mod graphs;

mod ranks;

mod toolkit;
