//! Placeholder essay.
#![forbid(unsafe_code)]

pub mod config;
pub mod launch;
pub mod run;
