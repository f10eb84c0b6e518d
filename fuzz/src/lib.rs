//! Readers of external bytes, for tests and guided fuzzing: messages of other processes, and contents of files.
//!
//! A [`targets::Target`] is a reader with valid inputs and a mutator that keeps their form, so that damage passes
//! checksums and lengths. `cargo test` runs each reader on its kept inputs and some damaged ones. `cargo xtask fuzz`
//! builds this crate's program with `--cfg fuzzing`, for libFuzzer.
#![forbid(unsafe_code)]

pub mod targets;
