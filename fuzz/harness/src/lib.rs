//! Checks the limits of every reader of external bytes: no panic, bounded memory, bounded time.
//!
//! [`check`] runs a reader on its kept inputs ([`kept`]), and on inputs damaged with a fixed seed ([`damage`]). Unit
//! tests of crates use it for private readers, the fuzzer's tests for all others. Guided runs use [`within_limits`] for
//! each input.
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
