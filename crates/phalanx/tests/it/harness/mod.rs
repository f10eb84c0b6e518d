//! The parts that tests of the program share: folders to run it in, trainings in the background, the files that runs leave behind, and
//! trainings within this process.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some tests are for Linux only"))]

pub(crate) mod engine;
pub(crate) mod place;
pub(crate) mod processes;
pub(crate) mod results;
pub(crate) mod running;

pub(crate) use place::{MLP, PROGRAM, Place, both, delayed, stderr};
pub(crate) use running::Running;
