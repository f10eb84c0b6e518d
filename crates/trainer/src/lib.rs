//! Placeholder essay.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod console;
pub mod engine;
pub mod launch;
pub mod parity;
pub mod run;
