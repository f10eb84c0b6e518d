//! Checks the limits that every reader of bytes from outside must hold: no panic, bounded memory, an end.
//!
//! [`check`] gives a reader its kept inputs ([`kept`]), and damaged ones ([`damage`]) that a fixed seed makes. Unit tests of crates use
//! it for readers that are private to them, the fuzzer's own tests for all others. Guided runs use [`within_limits`] for each input.
#![forbid(unsafe_code)]

mod check;
pub mod damage;
pub mod files;
pub mod json;
mod kept;
mod random;

pub use check::{Reader, check, within_limits};
pub use kept::kept;
pub use random::Random;
