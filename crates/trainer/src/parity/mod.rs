//! Parity.
pub mod fill;
mod report;
pub use report::Quantity;
