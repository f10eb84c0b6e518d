//! Integration tests of the collectives.
//!
//! Tests that need processes start this program again with the name of a test that plays a rank. Ranks of MPI's launcher are another
//! program, `tests/mpi.rs`.

mod common;

mod algorithms;
mod conformance;
mod control;
mod faults;
mod harm;
mod hosts;
mod mailbox;
mod meeting;
#[cfg(feature = "nccl")]
mod nccl;
mod parts;
mod rejoin;
mod secrets;
mod simulated;
