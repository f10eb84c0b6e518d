//! Readers of bytes from outside, for tests and for guided fuzzing: bytes that other processes send, and contents of files.
//!
//! A [`targets::Target`] is a reader with inputs that it reads and changes that keep their form, so that damage also lies behind
//! checksums and lengths. `cargo test` gives each reader its kept inputs and some damaged ones. `cargo xtask fuzz` builds the
//! program of this crate with `--cfg fuzzing`: libFuzzer, guided by the edges that inputs reach.
#![forbid(unsafe_code)]

pub mod targets;
