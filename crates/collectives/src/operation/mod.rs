//! What operations there are, which ways their bytes may take, and how one is told apart from another.

mod algorithm;
mod tag;

pub use algorithm::Algorithm;
pub(crate) use tag::{Kind, Scope, Sequences, Tag};
