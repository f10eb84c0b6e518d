//! Integration tests of the collectives.
//!
//! Tests that need processes start this program again with the name of a test that plays a rank. Programs that are ranks of a launcher,
//! or whose GPU ends the process on an error, are `tests/mpi.rs` and `tests/nccl/`.

mod common;

mod algorithms;
mod conformance;
mod control;
mod faults;
mod harm;
mod hosts;
mod mailbox;
mod meeting;
mod parts;
mod rejoin;
mod secrets;
mod simulated;
