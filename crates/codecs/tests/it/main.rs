//! Integration tests, as one program.

mod sums;
